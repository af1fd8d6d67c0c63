"""The grouping itself: nested, equal to comparing tuples, and what the diagnostics say of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import plain
import pytest
from batches import batches, interleaved, select
from hypothesis import given, settings

from hgpo.advantages import diagnose
from hgpo.advantages.columns import Steps
from hgpo.advantages.groups import context_groups, full_history_groups


def partition(steps, level):
    """The groups of a level as sets of rows."""
    groups = {}
    for position, code in zip(level.steps, level.codes, strict=True):
        groups.setdefault(code, set()).add(int(steps.order[position]))
    return {frozenset(rows) for rows in groups.values()}


@settings(max_examples=30, deadline=None)
@given(case=interleaved())
def test_groups_are_those_of_equal_tuples_and_nested(case):
    columns = select(*case)
    steps = Steps(columns)
    coarser = None
    for level in context_groups(steps, steps.state, history=4):
        keys = plain.contexts(columns, level.k)
        rows = {key: frozenset(r for r, k in enumerate(keys) if k == key) for key in set(keys) - {None}}
        found = partition(steps, level)
        assert found == {group for group in rows.values() if len(group) > 1}
        assert sorted(map(len, found)) == sorted(level.size)
        assert coarser is None or all(any(group <= wide for wide in coarser) for group in found)
        coarser = found


@pytest.mark.parametrize("context", ["states", "states_and_actions"])
@settings(max_examples=30, deadline=None)
@given(columns=batches(states=2))
def test_full_history_groups_are_those_of_equal_prefixes(context, columns):
    steps = Steps(columns)
    codes, count = full_history_groups(steps, steps.state, context)
    prefixes = []
    for position, row in enumerate(steps.order):
        past = steps.order[position - steps.time[position] : position]
        history = [(columns["state"][r], columns["action"][r] if context != "states" else "") for r in past]
        prefixes.append((columns["task"][row], tuple(history), columns["state"][row]))
    times = Counter(prefixes)
    assert count == sum(n > 1 for n in times.values())
    for i, a in enumerate(prefixes):
        for j, b in enumerate(prefixes):
            assert (times[a] > 1 and a == b) == (codes[i] >= 0 and codes[i] == codes[j]), (i, j)


def test_diagnostics_of_the_worked_example():
    columns = {
        "task": ["t"] * 6, "trajectory": [1, 1, 2, 2, 3, 3], "state": ["a", "b", "a", "b", "c", "b"],
        "reward": [0, 4, 0, 0, 0, 2],
    }  # fmt: skip
    found = diagnose(columns, history=1, normalisation="mean_norm", gamma=0.5)
    expected = {
        "groups/groups/0": 2, "groups/shared_share/0": 5 / 6, "groups/zero_share/0": 2 / 6, "groups/mean_size/0": 2.5,
        "groups/groups/1": 1, "groups/shared_share/1": 2 / 6, "groups/zero_share/1": 4 / 6, "groups/mean_size/1": 2,
        "groups/oracle_share": 4 / 6, "groups/rank_correlation/0/1": 1,
        "groups/bias/level_0": 0, "groups/variance/level_0": 0, "groups/mean_absolute_error/level_0": 0,
        "groups/bias/level_1": 0, "groups/variance/level_1": 0.5, "groups/mean_absolute_error/level_1": 0.5,
        "groups/variance/grpo": 0.5, "groups/variance/hgpo_paper": (2 / 3) ** 2 / 2,
    }  # fmt: skip
    for name, value in expected.items():
        assert found.metrics[name] == pytest.approx(value, abs=1e-12), name
    sizes = {(row["level"], row["size"]): row["value"] for row in found.rows if row["quantity"] == "group_size"}
    assert sizes == {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 1): 1, (1, 2): 1}


def test_bias_is_the_credit_for_the_context():
    """Two contexts meet in state m; one is worth 2, the other 0. Comparing by state alone credits the past."""
    columns = {
        "task": [0] * 8, "trajectory": [0, 0, 1, 1, 2, 2, 3, 3], "state": ["a", "m", "a", "m", "b", "m", "b", "m"],
        "reward": [0, 2, 0, 2, 0, 0, 0, 0],
    }  # fmt: skip
    metrics = diagnose(columns, history=1, normalisation="mean_norm", gamma=1.0).metrics
    assert metrics["groups/oracle_share"] == 1
    assert metrics["groups/bias/level_0"] == pytest.approx(np.sqrt(0.5))
    assert metrics["groups/bias/level_1"] == 0
    assert metrics["groups/bias/grpo"] == 1


def test_later_steps_are_those_in_which_no_level_is_missing_or_the_oracle():
    """Eight episodes end in x: level 1 tells the ways to it apart, and only the full history the starts."""
    rollouts = [("a1", "b", "x"), ("a2", "b", "x"), ("a1", "c", "x"), ("a2", "c", "x")]
    wins = dict(zip(rollouts, (4, 2, 1, 0), strict=True))
    columns = {name: [] for name in ("task", "trajectory", "state", "reward")}
    for number, rollout in enumerate(rollout for rollout in rollouts for _ in range(2)):
        for t, state in enumerate(rollout):
            reward = wins[rollout] * (1 + number % 2) if t == 2 else 0
            for name, value in zip(columns, (0, number, state, reward), strict=True):
                columns[name].append(value)
    metrics = diagnose(columns, history=1, normalisation="mean_norm", gamma=1.0).metrics
    assert metrics["groups/oracle_share"] == 1
    assert metrics["groups/later_oracle_share"] == 1 / 3  # the steps t = 2
    returns = np.array([wins[rollout] * turn for rollout in rollouts for turn in (1, 2)], float)
    by_oracle = returns.reshape(4, 2) - returns.reshape(4, 2).mean(axis=1, keepdims=True)
    for level, groups in ((0, 1), (1, 2)):
        mean = returns.reshape(groups, -1).mean(axis=1, keepdims=True)
        error = (returns.reshape(groups, -1) - mean).reshape(4, 2) - by_oracle
        assert np.ptp(error, axis=1) == pytest.approx(0)  # no variance: the levels only misplace the mean
        assert metrics[f"groups/later_bias/level_{level}"] == pytest.approx(np.sqrt((error**2).mean()))
        assert metrics[f"groups/later_variance/level_{level}"] == pytest.approx(0, abs=1e-12)
    # over all steps, the first ones, which have no level 1, look unbiased and scattered
    assert metrics["groups/bias/level_1"] < metrics["groups/later_bias/level_1"]
    assert metrics["groups/variance/level_1"] > 0


@settings(max_examples=30, deadline=None)
@given(columns=batches(states=2))
def test_later_diagnostics_are_over_the_oracle_steps_after_k(columns):
    found = diagnose(columns, history=1).metrics
    steps = Steps(columns)
    codes, _ = full_history_groups(steps, steps.state, "states")
    share = np.count_nonzero((codes >= 0) & (steps.time > 1)) / len(steps)
    assert found["groups/later_oracle_share"] == pytest.approx(share)
    if share and share == found["groups/oracle_share"]:
        for quantity in ("bias", "variance", "mean_absolute_error"):
            assert found[f"groups/later_{quantity}/level_0"] == found[f"groups/{quantity}/level_0"]
    assert (share > 0) == ("groups/later_bias/level_0" in found)


@settings(max_examples=30, deadline=None)
@given(case=interleaved())
def test_diagnostics_do_not_depend_on_the_order_of_rows(case):
    columns, order = case
    assert diagnose(select(columns, order), history=3).rows == diagnose(columns, history=3).rows


def test_diagnostics_of_nothing_and_of_one_step():
    empty = {name: [] for name in ("task", "trajectory", "state", "reward")}
    assert diagnose(empty).metrics["groups/oracle_share"] == 0
    single = {"task": [0], "trajectory": [0], "state": ["s"], "reward": [1.0]}
    assert diagnose(single).metrics["groups/shared_share/0"] == 0
