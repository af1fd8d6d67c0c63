"""The examples that docs/estimators.md works out by hand, and a second implementation from the equations."""

from __future__ import annotations

import numpy as np
import plain
import pytest
from batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo.advantages import compute

THREE = {
    "task": ["t"] * 6,
    "trajectory": [1, 1, 2, 2, 3, 3],
    "state": ["a", "b", "a", "b", "c", "b"],
    "action": ["go", "go", "stay", "go", "go", "go"],
    "agent": ["planner", "actor", "planner", "actor", "actor", "actor"],
    "reward": [0, 4, 0, 0, 0, 2],
    "value": [1, 2, 1, 2, 1, 2],
}  # returns with gamma 1/2: 2, 4, 0, 0, 1, 2

EXAMPLES = [
    ("hgpo", {"history": 1, "normalisation": "mean_norm"}, [1 / 3, 2, -1 / 3, -2, 0, 0]),
    ("hgpo", {"history": 1, "normalisation": "mean_norm", "alpha": 0.0}, [1 / 2, 2, -1 / 2, -2, 0, 0]),
    ("hgpo", {"history": 1, "normalisation": "mean_norm", "weights": "upstream"}, [1, 2, -1, -2, 0, 0]),
    (
        "hgpo",
        {"history": 1, "normalisation": "mean_norm", "weights": "upstream", "aggregation": "paper"},
        [2 / 5, 2, -2 / 5, -2, 0, 0],
    ),
    ("hgpo", {"history": 1, "normalisation": "mean_norm", "base_group": True}, [3 / 4, 2, -3 / 4, -2, 0, 0]),
    ("hgpo", {"history": 1, "normalisation": "mean_norm", "min_group_size": 3}, [0, 2 / 3, 0, -2 / 3, 0, 0]),
    (
        "hgpo",
        {"history": 1, "normalisation": "mean_norm", "context": "states_and_actions"},
        [1 / 3, 2 / 3, -1 / 3, -2 / 3, 0, 0],
    ),
    ("hgpo", {"history": 0}, [1, 1.2247449, -1, -1.2247449, 0, 0]),
    ("gigpo", {"normalisation": "mean_norm"}, [3, 4, -3, -4, 0, 0]),
    ("gigpo", {"step_weight": 2.0}, [1.1180340 + 1.4142136, 3.1180340, -2.5322476, -3.1180340, 0, 0]),
    ("grpo", {}, [1.1180340, 1.1180340, -1.1180340, -1.1180340, 0, 0]),
    ("grpo", {"episode_score": "per_trajectory"}, [1, 1, -1, -1, 0, 0]),
    ("grpo", {"normalisation": "mean_norm"}, [2, 2, -2, -2, 0, 0]),
    ("rloo", {}, [3, 3, -3, -3, 0, 0]),
    ("rloo", {"episode_score": "per_step"}, [2.4, 2.4, -2.4, -2.4, 0, 0]),
    ("reinforce_pp", {}, [0.3296902, 1.6484511, -0.9890707, -0.9890707, -0.3296902, 0.3296902]),
    ("reinforce_pp", {"baseline": "task"}, [1.1180340, 1.1180340, -1.1180340, -1.1180340, 0, 0]),
    ("ppo", {"lam": 0.5}, [0.5, 2, -0.5, -2, 0, 0]),
    ("ppo", {"lam": 0.0}, [0, 2, 0, -2, 0, 0]),
    ("dr_mas", {}, [0.7071068, 1.2247449, -0.7071068, -1.2247449, 0, 0]),
    ("dr_mas", {"normalisation": "mean_norm"}, [2, 2, -2, -2, 0, 0]),
]


@pytest.mark.parametrize(("method", "options", "expected"), EXAMPLES)
def test_three_trajectories(method, options, expected):
    np.testing.assert_allclose(compute(method, THREE, gamma=0.5, **options), expected, atol=3e-6)


def test_inverse_variance():
    columns = THREE | {"reward": [0, 4, 0, 0, 0, 5]}
    values = compute("hgpo", columns, history=1, normalisation="mean_norm", weights="inverse_variance", gamma=0.5)
    np.testing.assert_allclose(values, [1, 1.3682054, -1, -2.6317946, 0, 2], atol=1e-6)


def test_an_invalid_action_is_punished_in_its_own_step_only():
    columns = THREE | {"invalid": [False, True, False, False, False, False]}
    values = compute("hgpo", columns, history=0, normalisation="mean_norm", gamma=0.5, invalid_penalty=0.3)
    np.testing.assert_allclose(values, [1, 1.8, -1, -1.9, 0, 0.1], atol=1e-12)


def test_similar_states_share_a_group_only_within_their_task():
    columns = {
        "task": ["t", "t", "u"],
        "trajectory": [1, 2, 1],
        "state": ["You see a cup on desk 1.", "You see a cup on desk 2.", "You see a cup on desk 3."],
        "reward": [1, 0, 7],
    }
    options = {"history": 0, "normalisation": "mean_norm"}
    assert compute("hgpo", columns, **options).tolist() == [0, 0, 0]
    assert compute("hgpo", columns, similarity=0.9, **options).tolist() == [0.5, -0.5, 0]


def test_equal_returns_give_exactly_zero():
    """Three equal numbers whose floating-point mean differs from them."""
    columns = {"task": [0] * 3, "trajectory": [0, 1, 2], "state": ["s"] * 3, "reward": [7.3509189062499996] * 3}
    for method in ("hgpo", "grpo"):
        assert compute(method, columns).tolist() == [0.0, 0.0, 0.0]


def test_a_level_without_advantage_is_left_out_whatever_the_rounding():
    """The middle of 0.1, 0.2, 0.3 has advantage 0, not 1e-17, so upstream's aggregation drops that level."""
    columns = {
        "task": [0] * 8, "trajectory": [0, 0, 1, 1, 2, 2, 3, 3], "state": ["x", "s", "x", "s", "y", "s", "y", "s"],
        "reward": [0, 0.2, 0, 0.4, 0, 0.0, 0, 0.2],
    }  # fmt: skip
    values = compute("hgpo", columns, history=1, alpha=0.0, weights="upstream", normalisation="mean_norm")
    np.testing.assert_allclose(values[[1, 3]], [-0.1, 0.15], atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    columns=batches(),
    history=st.integers(0, 4),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    normalisation=st.sampled_from(["mean_norm", "mean_std_norm"]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_equal_to_dictionaries_and_tuples(columns, history, alpha, normalisation, gamma):
    common = {"normalisation": normalisation, "gamma": gamma, "invalid_penalty": 0.25}
    expected = {
        "hgpo": plain.hgpo(columns, history, alpha, normalisation, gamma, 0.25),
        "gigpo": plain.gigpo(columns, 0.5, normalisation, gamma, 0.25),
        "grpo": plain.grpo(columns, normalisation, 0.25),
    }
    own = {"hgpo": {"history": history, "alpha": alpha, "weights": "paper"}, "gigpo": {"step_weight": 0.5}, "grpo": {}}
    for method, values in expected.items():
        np.testing.assert_allclose(compute(method, columns, **common, **own[method]), values, rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(columns=batches(), kind=st.sampled_from(["per_trajectory", "per_step"]))
def test_rloo_leaves_out_what_it_judges(columns, kind):
    """Invalid steps included: a step's own score, minus the mean of all others' of its task."""
    values = compute("rloo", columns, episode_score=kind, invalid_penalty=0.25)
    scores, first = plain.scores(columns, 0.25), {}
    for row, trajectory in enumerate(zip(columns["task"], columns["trajectory"], strict=True)):
        first.setdefault(trajectory, row)
    for row, trajectory in enumerate(zip(columns["task"], columns["trajectory"], strict=True)):
        if kind == "per_step":
            others = [s for j, s in enumerate(scores) if j != row and columns["task"][j] == trajectory[0]]
        else:
            others = [scores[j] for key, j in first.items() if key != trajectory and key[0] == trajectory[0]]
        expected = scores[row] - (sum(others) / len(others) if others else 0.0)
        np.testing.assert_allclose(values[row], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(columns=batches())
def test_one_level_is_the_step_part_of_gigpo(columns):
    single = compute("hgpo", columns, history=0, normalisation="mean_norm")
    both = compute("gigpo", columns, normalisation="mean_norm", step_weight=1.0)
    np.testing.assert_allclose(both - compute("grpo", columns, normalisation="mean_norm"), single, atol=1e-9)
