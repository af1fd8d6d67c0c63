from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pool_environments as fakes
import pytest

from hgpo.envs.base import Observation
from hgpo.envs.pool import EpisodeFailed, Pool
from hgpo.errors import ConfigError, EnvironmentFailure
from hgpo.tasks import Task

pytestmark = pytest.mark.timeout(120)


def task(number: int | str) -> Task:
    return Task(str(number), "sum", "0" * 64, f"goal {number}")


def play(pool: Pool, scripts: dict[int, list[Task | str]]) -> dict[int, list[Observation | EpisodeFailed]]:
    """Plays each episode's script, each request as soon as the one before is answered, then releases it."""
    answers: dict[int, list[Observation | EpisodeFailed]] = {episode: [] for episode in scripts}
    for episode, script in scripts.items():
        pool.submit(episode, script[0])
    while pool.outstanding:
        for episode, answer in pool.ready():
            answers[episode].append(answer)
            position = len(answers[episode])
            if isinstance(answer, Observation) and position < len(scripts[episode]):
                pool.submit(episode, scripts[episode][position])
            else:
                pool.release(episode)
    return answers


def scripts(count: int = 10, steps: int = 5) -> dict[int, list[Task | str]]:
    return {e: [task(e % 5), *(str((e * 7 + i) % 10) for i in range(steps)), "end"] for e in range(count)}


def expected(script: list[Task | str]) -> list[Observation]:
    environment = fakes.Counter()
    return [environment.reset(r) if isinstance(r, Task) else environment.step(r) for r in script]


def wait_until_gone(pid: int) -> bool:
    for _ in range(300):
        try:
            os.kill(pid, 0)
            zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if zombie and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1:  # its other threads hold its socket
                time.sleep(0.2)
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("workers", "settings"),
    [(0, {}), (1, {}), (2, {}), (5, {}), (2, {"group_size": 4}), (1, {"recycle_after": 3}), (2, {"recycle_after": 1})],
)
def test_every_number_of_workers_gives_the_same(workers, settings):
    plan = scripts()
    with Pool(fakes.Counter, workers, **settings) as pool:
        answers = play(pool, plan)
        again = play(pool, plan)
    assert answers == again == {episode: expected(script) for episode, script in plan.items()}


@pytest.mark.parametrize(
    ("fault", "workers"), [("die", 1), ("die", 2), ("die", 5), ("hang", 1), ("hang", 2), ("raise", 2), ("exit", 2)]
)
def test_a_fault_amid_episodes_changes_nothing(tmp_path, workers, fault):
    plan = scripts()
    for episode in (3, 4):
        plan[episode].insert(4, f"{fault}-once {tmp_path / str(episode)}")
    with Pool(fakes.Counter, workers, call_timeout_s=2.0, max_replays=5) as pool:
        answers = play(pool, plan)
        assert pool.statistics.failures == 0
        assert pool.statistics.replays >= 2
        assert bool(pool.statistics.lost_workers) == (fault in ("die", "hang"))
    assert answers == {episode: expected(script) for episode, script in plan.items()}


def test_workers_killed_from_outside_at_any_moment():
    plan = scripts(count=40, steps=12)
    victims, answered = [], [0, 0]  # by worker: answers since it was killed (one that never starts is given up)
    with Pool(fakes.Counter, 2, max_replays=20) as pool:
        os.kill(pool.worker_ids[0], signal.SIGKILL)  # amid its start
        answers = {episode: [] for episode in plan}
        for episode, script in plan.items():
            pool.submit(episode, script[0])
        while pool.outstanding:
            for worker, pid in enumerate(pool.worker_ids):
                if answered[worker] >= 50 and len(pool.worker_ids) == 2:
                    os.kill(pid, signal.SIGKILL)
                    victims.append(pid)
                    answered[worker] = 0
            for episode, answer in pool.ready():
                answered[episode % 2] += 1
                answers[episode].append(answer)
                if len(answers[episode]) < len(plan[episode]):
                    pool.submit(episode, plan[episode][len(answers[episode])])
        assert pool.statistics.lost_workers >= 4
    assert len(set(victims)) >= 3
    assert answers == {episode: expected(script) for episode, script in plan.items()}


def test_a_worker_killed_between_calls_costs_no_episode():
    with Pool(fakes.Counter, 1, max_replays=0) as pool:
        pool.submit(0, task(0))
        assert pool.ready()
        os.kill(pool.worker_ids[0], signal.SIGKILL)
        assert wait_until_gone(pool.worker_ids[0])
        pool.submit(0, "5")
        assert pool.ready() == [(0, expected([task(0), "5"])[-1])]


@pytest.mark.parametrize(("fault", "says"), [("die", "signal 9"), ("hang", "within 0.5 s"), ("raise", "engine broke")])
def test_a_fault_that_stays_fails_that_episode_alone(fault, says):
    plan = scripts(count=6)
    plan[2] = [task("poisoned"), "1", fault, "2"]
    with Pool(fakes.Counter, 2, call_timeout_s=0.5, max_replays=1) as pool:
        answers = play(pool, plan)
        assert pool.statistics.failures == 1
    failed = answers.pop(2)
    del plan[2]
    assert [type(answer) for answer in failed] == [Observation, Observation, EpisodeFailed]
    assert failed[-1].task.id == "poisoned" and failed[-1].action == fault
    for part in ["poisoned", fault, says, "tried 2 times"]:
        assert part in str(failed[-1])
    assert answers == {episode: expected(script) for episode, script in plan.items()}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_game_fails_at_once_with_its_task(workers):
    with Pool(fakes.Counter, workers) as pool:
        answers = play(pool, {0: [task("corrupt")], 1: [task(1), "data"], 2: [task(2), "1"]})
        assert pool.statistics.replays == 0 and pool.statistics.lost_workers == 0
    assert "task corrupt failed at reset: the game file corrupt.tw-pddl is truncated" in str(answers[0][0])
    assert "the scene is missing" in str(answers[1][1])
    assert answers[2] == expected([task(2), "1"])


@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_in_process_are_handled_like_those_in_workers(tmp_path, workers):
    plan = {0: [task(0), "3", f"raise-once {tmp_path / 'a'}", "4"], 1: [task(1), "exit"]}
    with Pool(fakes.Counter, workers, max_replays=1) as pool:
        answers = play(pool, plan)
    assert answers[0] == expected(plan[0])
    assert "SystemExit: 3" in answers[1][1].reason and "tried 2 times" in answers[1][1].reason


def test_a_worker_that_dies_at_each_reset_fails_the_task():
    with Pool(fakes.Counter, 1, max_replays=1) as pool:
        answers = play(pool, {0: [task("die-at-reset")], 1: [task(1), "2"]})
    assert "die-at-reset failed at reset: its worker was killed by signal 9" in str(answers[0][0])
    assert answers[1] == expected([task(1), "2"])


def test_a_replay_that_differs_is_a_failure_and_not_a_wrong_state(tmp_path):
    with Pool(fakes.drifting, 1) as pool:
        answers = play(pool, {0: [task(0), "1", f"die-once {tmp_path / 'x'}", "2"]})[0]
    assert [type(answer) for answer in answers] == [Observation, Observation, EpisodeFailed]
    assert "replay differs: reset gave another observation" in answers[-1].reason


def test_workers_that_die_at_start():
    with Pool(fakes.DiesWhenUnpickled(), 1) as pool:
        pool.submit(0, task(0))
        with pytest.raises(EnvironmentFailure, match="3 attempts: it ended with exit code 7"):
            pool.ready()


def test_workers_that_cannot_be_set_up():
    with Pool(fakes.Unpicklable(), 2) as pool:
        pool.submit(0, task(0))
        with pytest.raises(EnvironmentFailure, match="no module named engine"):
            pool.ready()


def test_environments_that_cannot_be_made_fail_their_episodes():
    with Pool(fakes.unmakeable, 1) as pool:
        assert "task 0 failed at reset: no games at this path" in str(play(pool, {0: [task(0)]})[0][0])


def test_a_factory_that_no_worker_can_import():
    with pytest.raises(ConfigError, match="cannot be sent to a worker"):
        Pool(lambda: fakes.Counter(), 1)


@pytest.mark.parametrize("setting", ["workers", "max_replays", "recycle_after", "group_size"])
def test_unusable_settings(setting):
    with pytest.raises(ConfigError, match=setting):
        Pool(fakes.Counter, **{setting: -1})


@pytest.mark.parametrize("workers", [0, 1])
def test_requests_out_of_turn(workers):
    with Pool(fakes.Counter, workers) as pool:
        with pytest.raises(ValueError, match="not begun"):
            pool.submit(0, "1")
        pool.submit(0, task(0))
        with pytest.raises(ValueError, match="waits"):
            pool.submit(0, "1")
        pool.ready()
        pool.submit(0, "end")
        pool.ready()
        with pytest.raises(ValueError, match="ended"):
            pool.submit(0, "1")
        pool.submit(0, task(1))
        assert pool.ready() == [(0, expected([task(1)])[0])]
        assert pool.ready() == []
        pool.release(99)


def test_ready_waits_no_longer_than_asked():
    with Pool(fakes.Counter, 1, call_timeout_s=600) as pool:
        pool.submit(0, task(0))
        pool.ready()
        pool.submit(0, "hang")
        assert pool.ready(timeout=0) == []
        assert pool.ready(timeout=0.05) == []
        pool.release(0)
        assert pool.ready() == []


def test_a_released_episode_answers_no_more_and_leaves_the_others_alone():
    with Pool(fakes.Counter, 1) as pool:
        pool.submit(0, task(0))
        pool.submit(1, task(1))
        pool.release(0)
        assert pool.ready() == [(1, expected([task(1)])[0])]
        pool.submit(0, task(3))
        assert pool.ready() == [(0, expected([task(3)])[0])]


def test_released_environments_are_used_again():
    with Pool(fakes.Reporter, 1) as pool:
        for round_ in range(3):
            play(pool, {round_ * 10 + e: [task(e), "1"] for e in range(4)})
        assert play(pool, {99: [task(0), "made"]})[99][1].text == "4"


def test_workers_are_recycled_when_their_episodes_are_over():
    def pid_of(pool, episode):
        return play(pool, {episode: [task(0), "pid"]})[episode][1].text

    with Pool(fakes.Reporter, 1, recycle_after=3) as pool:
        pids = [pid_of(pool, episode) for episode in range(9)]
        assert pool.statistics.recycled_workers == 2 and pool.statistics.replays == 0
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 3]


def test_a_long_episode_does_not_stop_recycling_for_ever():
    with Pool(fakes.Counter, 1, recycle_after=2) as pool:
        pool.submit(0, task(0))
        pool.ready()
        for episode in range(1, 6):
            play(pool, {episode: [task(1), "1"]})
        assert pool.statistics.recycled_workers == 1
        pool.submit(0, "5")
        assert pool.ready() == [(0, expected([task(0), "5"])[-1])]


def test_long_actions_and_floods_do_not_block():
    long = "9" * 4000 + "x" * 200_000
    plan = {episode: [task(0), long, long, "end"] for episode in range(16)}
    with Pool(fakes.Counter, 2) as pool:
        assert play(pool, plan) == {episode: expected(script) for episode, script in plan.items()}


def test_a_group_shares_a_worker():
    with Pool(fakes.Reporter, 3, group_size=4) as pool:
        answers = play(pool, {episode: [task(0), "pid"] for episode in range(24)})
    pids = [answers[episode][1].text for episode in range(24)]
    assert all(len(set(pids[start : start + 4])) == 1 for start in range(0, 24, 4))
    assert len(set(pids)) == 3


def test_workers_are_told_what_their_episodes_will_begin_with():
    tasks = [task(0), task(0), task(1), task(1), task(2), task(2)]
    with Pool(fakes.Forewarned, 2, group_size=2) as pool:
        pool.expect(tasks)
        told: list[str] = []
        while told != ["0,2", "1", "0,2"]:  # the test's time limit ends it
            answers = play(pool, {episode: [task(9), "expected"] for episode in (0, 2, 5)})
            told = [answers[episode][1].text for episode in (0, 2, 5)]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("fault", ["", "raise", "die", "exit", "hang"])
def test_whatever_happens_while_a_task_is_expected_changes_nothing(fault, workers):
    tasks = [task(f"{fault}-when-expected {number}") for number in range(4)]
    plan = {episode: [tasks[episode], "1", "end"] for episode in range(4)}
    with Pool(fakes.Forewarned, workers, call_timeout_s=2.0, max_replays=0) as pool:
        pool.expect(tasks)
        answers = play(pool, plan)
        pool.expect(tasks)
        again = play(pool, plan)
        assert pool.statistics.failures == 0
    assert answers == again == {episode: expected(script) for episode, script in plan.items()}


def test_calls_go_before_what_is_expected():
    with Pool(fakes.Forewarned, 1) as pool:
        pool.expect([task(f"slow-when-expected {number}") for number in range(20)])
        told = play(pool, {0: [task("slow-when-expected 19"), "expected"]})[0][1].text
        assert len(told.split(",")) < 10
        while "slow-when-expected 18" not in told:
            told = play(pool, {0: [task(0), "expected"]})[0][1].text
    assert "slow-when-expected 19" not in told  # it had begun already


def test_an_environment_that_broke_over_an_expected_task_is_thrown_away():
    with Pool(fakes.Forewarned, 1) as pool:
        pool.expect([task("raise-when-expected")])
        while play(pool, {0: [task(0), "closed"]})[0][1].text != "1":  # the test's time limit ends it
            pass


def test_an_environment_need_not_expect_anything():
    with Pool(fakes.Counter, 1) as pool:
        pool.expect([task(0)])
        assert play(pool, {0: [task(0), "1"]}) == {0: expected([task(0), "1"])}


def test_workers_import_no_learning_library_and_print_nothing_to_the_output(capfd):
    with Pool(fakes.Reporter, 1) as pool:
        modules = play(pool, {0: [task(0), "print", "modules"]})[0][2].text.split(",")
    assert "hgpo.envs.worker" in sys.modules and "numpy" in modules
    assert not {"torch", "transformers", "ray"} & set(modules)
    assert "noise" not in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_workers_leave_signals_to_their_parent(number):
    with Pool(fakes.Reporter, 1) as pool:
        os.kill(pool.worker_ids[0], number)  # at once, while it is still starting
        first = play(pool, {0: [task(0), "pid"]})[0][1].text
        os.kill(int(first), number)
        assert play(pool, {1: [task(0), "pid"]})[1][1].text == first
        assert pool.statistics.lost_workers == 0


@pytest.mark.parametrize("request_", ["1", "hang"])
def test_workers_end_when_closed(request_):
    with Pool(fakes.Counter, 2) as pool:
        pool.submit(0, task(0))
        pool.ready()
        pool.submit(0, request_)
        pids = pool.worker_ids
    assert len(pids) == 2
    assert all(wait_until_gone(pid) for pid in pids)


PARENT = """
import sys, time
import pool_environments as fakes
from hgpo.envs.pool import Pool
from hgpo.tasks import Task
pool = Pool(fakes.Counter, 2)
for episode in (0, 1):
    pool.submit(episode, Task("a", "b", "c"))
while pool.outstanding:
    pool.ready()
pool.submit(0, "hang")
print(*pool.worker_ids, flush=True)
time.sleep(600)
"""


def test_workers_die_with_their_parent():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.wait()
    gone = [wait_until_gone(pid) for pid in pids]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert gone == [True, True]
