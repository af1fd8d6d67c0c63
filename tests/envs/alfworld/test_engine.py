"""The adapter says what the engine says, without the engine's side effects."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hgpo.envs.alfworld import AlfworldEnvironment, AlfworldExpert, compiled, engine, list_tasks, open_environment
from hgpo.envs.alfworld.compiled import load_game, parse_fact, read_game
from hgpo.envs.alfworld.environment import split_intro
from hgpo.envs.alfworld.game import Game
from hgpo.envs.alfworld.stock import StockGame
from hgpo.errors import DataError, EnvironmentFailure
from hgpo.tasks import Task


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_text_is_that_of_the_unmodified_engine_at_every_step(prepared):
    drawn = random.Random(3)
    stock, ours = StockGame(), Game()
    for task in list_tasks(prepared, "valid_unseen")[::2]:
        file = prepared / "games" / task.id / "game.tw-pddl"
        compiled = load_game(read_game(file), file)
        expected, found = stock.reset(file), ours.reset(compiled)
        commands = [*compiled.walkthrough, "look", "take the moon", " inventory "]
        for index in range(len(commands) + 6):
            assert found == expected
            command = commands[index] if index < len(commands) else drawn.choice(expected.admissible)
            expected, found = stock.step(command), ours.step(command)
        assert found == expected
    ours.close()


def test_argument_vector_and_random_state_are_left_alone(prepared, tmp_path):
    arguments, state = list(sys.argv), random.getstate()
    environment = AlfworldEnvironment(prepared, cache=tmp_path)
    task = list_tasks(prepared, "train")[0]
    observation = environment.reset(task)
    expert = AlfworldExpert(environment)
    expert.begin(task, observation)
    environment.step(expert.act(observation))
    environment.close()
    assert sys.argv == arguments
    assert random.getstate() == state


def test_an_expected_game_is_not_compiled_again(prepared, tmp_path, monkeypatch):
    first, second = list_tasks(prepared, "train")[:2]
    expecting, other = AlfworldEnvironment(prepared, cache=tmp_path), AlfworldEnvironment(prepared, cache=tmp_path)
    observed = AlfworldEnvironment(prepared, cache=tmp_path / "other").reset(second)
    expecting.expect(first)
    expecting.expect(second)
    monkeypatch.setattr(compiled, "compile_game", lambda game: pytest.fail("compiled again"))
    assert expecting.reset(second) == other.reset(second) == observed
    assert other.reset(first).goal == first.goal


def test_expected_games_are_kept_where_the_cache_cannot_be_written(prepared, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    tasks, compile_game, count = list_tasks(prepared, "train")[2:5], compiled.compile_game, []
    monkeypatch.setattr(compiled, "compile_game", lambda game: count.append(1) or compile_game(game))
    environment = AlfworldEnvironment(prepared, cache=tmp_path / "file" / "cache")
    for task in tasks:
        environment.expect(task)
    for task in tasks:
        environment.reset(task)
    assert len(count) == len(tasks)


def test_importing_the_package_leaves_textworld_alone_and_is_light():
    heavy = ("textworld", "torch", "fast_downward")
    code = f"import sys, hgpo.envs.alfworld; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("found", ["1.6.1", None])
def test_another_version_of_the_engine_is_refused_by_name(monkeypatch, found):
    def version(package):
        if package == "textworld":
            if found is None:
                raise engine.PackageNotFoundError
            return found
        return engine.VERSIONS[package]

    engine.require_engine.cache_clear()
    monkeypatch.setattr(engine, "version", version)
    try:
        with pytest.raises(EnvironmentFailure, match="textworld is (1.6.1|not installed), needed is 1.7.0") as error:
            Game()
        assert "textworld==1.7.0" in error.value.hint
    finally:
        engine.require_engine.cache_clear()


def test_reloading_does_not_leak(prepared):
    tasks = [task for split in ("train", "valid_unseen") for task in list_tasks(prepared, split)]
    environment = open_environment(prepared)

    def play_all() -> None:
        for task in tasks:
            environment.reset(task)
            environment.step("look")

    play_all()
    play_all()
    before = _resident_mb()
    for _ in range(4):
        play_all()
    assert _resident_mb() - before < 5  # stock: 1.7 MB for each of the 72
    environment.close()


def test_closed_environments_give_their_engine_back(prepared):
    task = list_tasks(prepared, "train")[0]
    open_environment(prepared).close()
    before = _resident_mb()
    for _ in range(30):
        environment = open_environment(prepared)
        environment.reset(task)
        environment.close()
    assert _resident_mb() - before < 10  # a new copy of the library each time: 50 MB


def test_observation_of_reset_has_neither_banner_nor_goal(prepared):
    environment = open_environment(prepared)
    task = list_tasks(prepared, "train")[0]
    observation = environment.reset(task)
    assert observation.text.startswith("You are in the middle of a room.")
    assert "Welcome" not in observation.text and "Your task" not in observation.text
    assert environment.raw_text.startswith("-= Welcome to TextWorld, ALFRED! =-\n\n")
    assert environment.raw_text.endswith(f"Your task is to: {observation.goal}.")
    assert observation.state == observation.text
    assert not observation.done and observation.reward == 0.0
    assert environment.step("dance").text == "Nothing happens."
    environment.close()


def test_an_unknown_intro_is_refused():
    with pytest.raises(DataError, match="unknown text"):
        split_intro("Hello.")


def test_no_step_before_reset_or_after_the_end(prepared):
    environment = open_environment(prepared)
    with pytest.raises(EnvironmentFailure, match="call reset"):
        environment.step("look")
    task = list_tasks(prepared, "train")[0]
    file = prepared / "games" / task.id / "game.tw-pddl"
    environment.reset(task)
    for command in load_game(read_game(file), file).walkthrough:
        observation = environment.step(command)
    assert observation.done
    with pytest.raises(EnvironmentFailure, match="call reset"):
        environment.step("look")
    environment.close()


def test_environments_of_one_process_do_not_disturb_each_other(prepared):
    task, other = list_tasks(prepared, "train")[:2]
    first, second, third = (open_environment(prepared) for _ in range(3))
    start = first.reset(task)
    second.reset(task)
    third.reset(other)
    move = next(action for action in start.admissible if action.startswith("go to"))
    moved = first.step(move)
    third.step("look")
    assert second.step("inventory").admissible == start.admissible
    assert second.step(move) == moved
    for environment in (first, second, third):
        environment.close()


def test_the_expert_is_deterministic_in_its_seed(prepared):
    task = next(task for task in list_tasks(prepared, "train") if task.type == "pick_two_obj_and_place")
    environment = open_environment(prepared)

    def commands() -> list[str]:
        expert = AlfworldExpert(environment, seed=5)
        observation = environment.reset(task)
        expert.begin(task, observation)
        taken = []
        while not observation.done:
            taken.append(expert.act(observation))
            observation = environment.step(taken[-1])
        return taken

    first = commands()
    random.random()
    assert commands() == first
    environment.close()


def test_parse_fact():
    assert parse_fact("Atom holds(agent1, mug)") == ("holds", ("agent1", "mug"))
    assert parse_fact("NegatedAtom opened(safe)") == ("not_opened", ("safe",))
    assert parse_fact("Atom new-axiom@0()") == ("new-axiom@0", ())


def test_a_changed_game_is_refused(prepared):
    environment = open_environment(prepared)
    task = list_tasks(prepared, "train")[0]
    with pytest.raises(DataError, match="was changed: its sha256"):
        environment.reset(Task(task.id, task.type, "0" * 64))
    environment.close()
