"""Scores computed beside the rollout: what was played decides the blocks, and every step gets its own score."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo.errors import HgpoError
from hgpo.rollout.episode import Episode, Step
from hgpo.training.scores import Group, Scores, ScoresBeside


def episode(task: str, rollout: int) -> Episode:
    return Episode(task=task, task_type="", rollout=rollout, goal="")


def step(tokens: int) -> Step:
    ids = list(range(tokens))
    return Step("", "", (), ids[:-1], ids[-1:], [0.0], "", "", "", False, "stop", 0)


def score(rows):
    """The tokens of each row, and which thread counted them."""
    return [np.array([len(row), threading.get_ident()]) for row in rows]


# how many tokens each step of each rollout has, and who takes the next turn
groups = st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=6), min_size=1, max_size=4)


def played(lengths, watch, order, task="task") -> list[Episode]:
    """Plays the rollouts of a task to their ends, as they come in `order`; each begins first."""
    episodes = [episode(task, number) for number in range(len(lengths))]
    turns = [number for number, steps in enumerate(lengths) for _ in range(len(steps) + 1)]
    order.shuffle(turns)
    taken = [-1] * len(lengths)
    for number in turns:
        taken[number] += 1
        if taken[number]:
            episodes[number].steps.append(step(lengths[number][taken[number] - 1]))
        watch(episodes[number], taken[number] == len(lengths[number]))
    return episodes


@given(groups, st.integers(1, 60), st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_blocks_depend_on_what_was_played_and_not_on_when(lengths, most, order, other):
    def blocks(order):
        found, group = [], Group(len(lengths), most)
        played(lengths, lambda e, ended: found.extend(group.take(e, ended)), order)
        return [[(e.rollout, position) for e, position in block] for block in found]

    cut = blocks(order)
    assert cut == blocks(other)
    assert sorted(place for block in cut for place in block) == [
        (rollout, position) for rollout, steps in enumerate(lengths) for position in range(len(steps))
    ]
    for block in cut:
        tokens = sum(lengths[rollout][position] for rollout, position in block)
        assert tokens <= most or len({position for _, position in block}) == 1


@given(st.lists(groups, min_size=1, max_size=3), st.integers(1, 60), st.randoms(use_true_random=False))
def test_every_step_gets_its_own_score_in_the_order_asked_for(tasks, most, order):
    for lengths in tasks:
        scores = ScoresBeside({"length": score}, len(lengths), most)
        episodes = played(lengths, scores.watch, order)
        scores.wait()
        scores.close()
        asked = episodes[::-1]
        beside, after = scores.of("length", asked), Scores({"length": score}).of("length", asked)
        assert [value[0] for value in beside] == [value[0] for value in after]
        assert threading.get_ident() not in {value[1] for value in beside}


def test_a_task_whose_environment_is_lost_is_not_scored_any_further():
    group = Group(2, 1)
    one, other = episode("task", 0), episode("task", 1)
    assert group.take(one, False) == group.take(other, False) == []
    one.steps.append(step(3))
    other.failed = "gone"
    assert group.take(other, True) == []
    assert group.take(one, True) == []


def test_what_goes_wrong_beside_the_rollout_ends_it():
    def fails(rows):
        raise HgpoError("the learner is gone", "start again")

    scores = ScoresBeside({"length": fails}, 1, 1)
    one = episode("task", 0)
    with pytest.raises(HgpoError, match="the learner is gone"):
        for _ in range(200):
            one.steps.append(step(3))
            scores.watch(one, False)
            time.sleep(0.01)
    scores.close()


def test_no_error_is_lost_however_its_moment_falls():
    class Failing:
        """Ends in an error between two looks."""

        def __init__(self) -> None:
            self.looks = 0

        def done(self) -> bool:
            self.looks += 1
            return self.looks > 1

        def result(self) -> None:
            raise HgpoError("the learner is gone", "start again")

    scores = ScoresBeside({"length": score}, 2, 1)
    scores._asked = [Failing()]
    scores.watch(episode("task", 0), False)
    with pytest.raises(HgpoError, match="the learner is gone"):
        scores.wait()
    scores.close()


def test_closing_waits_for_what_runs_and_gives_up_the_rest():
    begun, go_on, asked = threading.Event(), threading.Event(), []

    def slow(rows):
        asked.append(len(rows))
        begun.set()
        go_on.wait(10)
        return score(rows)

    scores = ScoresBeside({"length": slow}, 1, 1)
    one = episode("task", 0)
    for _ in range(9):
        one.steps.append(step(3))
        scores.watch(one, False)
    assert begun.wait(10)
    closing = threading.Thread(target=scores.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    closing.join(10)
    assert not closing.is_alive() and len(asked) < 9
