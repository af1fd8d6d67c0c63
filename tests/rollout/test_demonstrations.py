"""Expert episodes: what is demonstrated, and what hesitation and noise change."""

from __future__ import annotations

import pytest
from corridor import Corridor, panel

from hgpo.rollout.demonstrations import Demonstration, demonstrate


class Guide:
    def __init__(self, environment: Corridor) -> None:
        self.environment = environment

    def begin(self, task, observation) -> None:
        self.goal = int(task.id.rsplit("-", 1)[1])

    def act(self, observation) -> str:
        return "open door" if int(observation.state.split()[-1]) == self.goal else "go right"

    def idle(self, observation) -> tuple[str, ...]:
        return ("wait",)


def play(count: int, max_steps: int = 8, noise: float = 0.0, hesitation: float = 0.0) -> list[Demonstration]:
    return list(demonstrate(panel().tasks, range(count), Corridor(), Guide, max_steps, noise, 7, hesitation))


def actions(demonstrations: list[Demonstration]) -> list[str]:
    replies = [turn.reply for d in demonstrations for turn in d.turns]
    return [reply.split("<action>")[1].removesuffix("</action>") for reply in replies]


def test_an_expert_that_does_not_hesitate_wins_by_the_shortest_way() -> None:
    played = play(4)
    assert [len(d.turns) for d in played] == [1, 2, 3, 4]
    assert all(d.won for d in played)
    assert "wait" not in actions(played)


@pytest.mark.parametrize("hesitation", [0.3, 0.6])
def test_that_share_of_what_a_hesitant_expert_shows_is_idle(hesitation: float) -> None:
    shown = actions(play(800, max_steps=60, hesitation=hesitation))
    assert shown.count("wait") / len(shown) == pytest.approx(hesitation, abs=0.04)


def test_a_hesitant_expert_gets_the_more_steps() -> None:
    shown = play(400, max_steps=4, hesitation=0.5)
    assert max(len(d.turns) for d in shown) == 8
    assert sum(d.won for d in shown) > 0.8 * len(shown)


def test_idle_steps_are_part_of_the_history() -> None:
    turn = next(t for d in play(40, hesitation=0.5) for t in d.turns if t.history and t.history[-1][1] == "wait")
    assert turn.observation == "Nothing happens."


def test_noise_is_played_but_not_learnt() -> None:
    played = play(40, max_steps=30, noise=0.5)
    strayed = [d for d in played[4:] if any(a == "go left" for t in d.turns for _, a in t.history)]
    assert strayed
    assert "go left" not in actions(played)


def test_the_same_seed_gives_the_same_episodes() -> None:
    assert play(20, hesitation=0.4, noise=0.2) == play(20, hesitation=0.4, noise=0.2)
