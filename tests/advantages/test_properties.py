"""What holds for every estimator, whatever its equation; new estimators are covered by being there."""

from __future__ import annotations

import numpy as np
import pytest
from batches import batches, interleaved, select
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo import advantages
from hgpo.advantages.registry import get

METHODS = advantages.methods()
VARIANTS = [(method, {}) for method in METHODS] + [
    ("hgpo", {"weights": "upstream", "history": 4, "base_group": True}),
    ("hgpo", {"weights": "inverse_variance", "history": 3}),
    ("hgpo", {"weights": "inverse_variance", "normalisation": "mean_norm", "base_group": True}),
    ("hgpo", {"context": "states_and_actions", "min_group_size": 3, "alpha": 0.5}),
    ("hgpo", {"similarity": 0.95}),
    ("gigpo", {"normalisation": "mean_norm", "step_weight": 0.5, "episode_score": "per_trajectory"}),
    ("grpo", {"episode_score": "per_trajectory"}),
    ("dr_mas", {"episode_score": "per_trajectory", "normalisation": "mean_norm"}),
    ("rloo", {"episode_score": "per_step"}),
    ("reinforce_pp", {"baseline": "task"}),
    ("ppo", {"whiten": True, "lam": 0.5}),
]
WITHIN_TASK = [(method, options) for method, options in VARIANTS if get(method).compares == "task"]
every = pytest.mark.parametrize(("method", "options"), VARIANTS)
within_task = pytest.mark.parametrize(("method", "options"), WITHIN_TASK)


@every
@settings(max_examples=25, deadline=None)
@given(case=interleaved())
def test_order_of_rows_changes_not_one_bit(method, options, case):
    columns, order = case
    straight = advantages.compute(method, columns, **options)
    mixed = advantages.compute(method, select(columns, order), **options)
    assert mixed.tobytes() == straight[order].tobytes()


@every
@settings(max_examples=15, deadline=None)
@given(columns=batches())
def test_names_of_states_tasks_and_trajectories_do_not_matter(method, options, columns):
    renamed = columns | {
        "task": [hash(("task", name)) for name in columns["task"]],
        "trajectory": [(name, name) for name in columns["trajectory"]],
    }
    if options.get("similarity", 1.0) == 1.0:
        renamed["state"] = [f"{name[::-1]} renamed" for name in columns["state"]]
    expected = advantages.compute(method, columns, **options)
    assert advantages.compute(method, renamed, **options).tobytes() == expected.tobytes()


@every
@settings(max_examples=40, deadline=None)
@given(columns=batches(reward=st.floats(allow_nan=False, allow_infinity=False)))
def test_finite_on_any_finite_rewards(method, options, columns):
    values = advantages.compute(method, columns, **options)
    assert values.dtype == np.float64 and values.shape == (len(columns["task"]),)
    assert np.isfinite(values).all()


@within_task
@settings(max_examples=20, deadline=None)
@given(columns=batches(), other=st.floats(-1e6, 1e6))
def test_no_task_touches_another(method, options, columns, other):
    inside = np.array([task == "task 0" for task in columns["task"]])
    changed = columns | {
        "reward": [r if i else other + k for k, (r, i) in enumerate(zip(columns["reward"], inside, strict=True))]
    }
    before, after = (advantages.compute(method, c, **options)[inside] for c in (columns, changed))
    assert before.tobytes() == after.tobytes()
    alone = select(columns, np.flatnonzero(inside))
    assert advantages.compute(method, alone, **options).tobytes() == before.tobytes()


@every
def test_empty_input_gives_an_empty_array(method, options):
    columns = {name: [] for name in ("task", "trajectory", "state", "action", "agent", "reward", "value", "invalid")}
    values = advantages.compute(method, columns, **options)
    assert values.shape == (0,) and values.dtype == np.float64


@every
def test_lists_tuples_arrays_and_integers_are_the_same_input(method, options):
    columns = {
        "task": [0, 0, 0, 1, 1, 1], "trajectory": [0, 1, 0, 0, 1, 1], "state": [1, 1, 2, 1, 1, 2],
        "action": [0, 1, 0, 1, 0, 1], "agent": [0, 0, 1, 1, 0, 1], "reward": [0, 1, 2, 3, 4, 5],
        "value": [0, 1, 0, 1, 0, 1], "invalid": [0, 1, 0, 0, 0, 1],
    }  # fmt: skip
    options = {name: value for name, value in options.items() if name != "similarity"}
    expected = advantages.compute(method, columns, **options).tobytes()
    for convert in (tuple, np.array):
        again = {name: convert(values) for name, values in columns.items()}
        assert advantages.compute(method, again, **options).tobytes() == expected
    words = {n: [f"{v}" for v in c] if n in ("task", "trajectory", "state", "action", "agent") else c
             for n, c in columns.items()}  # fmt: skip
    assert advantages.compute(method, words, **options).tobytes() == expected


SHIFTED = [
    (method, options)
    for method, options in VARIANTS
    if method in ("hgpo", "gigpo", "grpo", "dr_mas", "rloo") or options.get("baseline") == "task"
]


@pytest.mark.parametrize(("method", "options"), SHIFTED)
@settings(max_examples=20, deadline=None)
@given(columns=batches(), constant=st.floats(-50, 50))
def test_a_constant_added_to_all_returns_of_a_task_changes_nothing(method, options, columns, constant):
    """With gamma 1 a constant on each trajectory's last reward shifts all its returns and scores alike."""
    scores_per_group = {}
    for row in zip(columns["task"], columns["trajectory"], columns["agent"], strict=True):
        scores_per_group.setdefault((row[0], row[2]), set()).add(row[1])
        scores_per_group.setdefault(row[0], set()).add(row[1])
    keep = [row for row, task in enumerate(columns["task"])
            if all(len(v) > 1 for k, v in scores_per_group.items() if k == task or k[0] == task)]  # fmt: skip
    columns = select(columns, keep)  # a score that is alone in its group stays raw, by definition
    last = {key: row for row, key in enumerate(zip(columns["task"], columns["trajectory"], strict=True))}
    shifted = columns | {"reward": [r + constant * (row in last.values()) for row, r in enumerate(columns["reward"])]}
    before, after = (advantages.compute(method, c, gamma=1.0, **options) for c in (columns, shifted))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-7)


SCALED = [(m, o) for m, o in VARIANTS if "normalisation" in advantages.option_names(m)]


@pytest.mark.parametrize(("method", "options"), SCALED)
@settings(max_examples=20, deadline=None)
@given(columns=batches(reward=st.integers(-9, 9).map(float)), scale=st.sampled_from([0.25, 3.0, 7.0, 64.0]))
def test_scaling_all_rewards(method, options, columns, scale):
    """mean_norm scales with the rewards; mean_std_norm doesn't feel it, but for its 1e-6 (and raw single scores).

    The latter without discount: discounted returns may be a hundredth apart, where 1e-6 is felt.
    """
    columns = columns | {"invalid": [False] * len(columns["task"])}
    scaled = columns | {"reward": [scale * r for r in columns["reward"]]}
    kind = {**options, "normalisation": "mean_norm"}
    before, after = (advantages.compute(method, c, **kind) for c in (columns, scaled))
    np.testing.assert_allclose(after, scale * before, rtol=1e-9, atol=1e-9)
    if method == "hgpo" and not options.get("base_group"):
        kind |= {"normalisation": "mean_std_norm", "gamma": 1.0}
        before, after = (advantages.compute(method, c, **kind) for c in (columns, scaled))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
