"""An estimator that is declared wrongly, or returns what is no advantage, is named in one message."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

import numpy as np
import pytest

from hgpo import advantages
from hgpo.advantages import grpo, registry
from hgpo.advantages.options import ReturnOptions, option
from hgpo.advantages.registry import estimator
from hgpo.errors import ConfigError, HgpoError

COLUMNS = {"task": ["t"] * 4, "trajectory": [1, 2, 1, 2], "reward": [0.0, 1.0, 2.0, 4.0]}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """What a test declares is forgotten after it."""
    advantages.methods()
    monkeypatch.setattr(registry, "_ESTIMATORS", dict(registry._ESTIMATORS))
    return registry._ESTIMATORS


def test_a_second_estimator_of_one_name_is_refused(known):
    before = known["grpo"]
    with pytest.raises(ConfigError, match=r"two estimators 'grpo': hgpo\.advantages\.grpo\.grpo and test_registry\..*"):

        @estimator("grpo", ReturnOptions)
        def another(steps, options):
            return steps.reward

    assert known["grpo"] is before


def test_a_module_may_be_loaded_again():
    importlib.reload(grpo)
    assert advantages.compute("grpo", COLUMNS).shape == (4,)


@dataclass(frozen=True, kw_only=True)
class Plain(ReturnOptions):
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Empty(ReturnOptions):
    factor: float | None = option(None, "Multiplies the advantage.")


class Undecorated(ReturnOptions):
    factor: float = option(1.0, "Multiplies the advantage.")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Plain, "Plain.factor does not say what it allows\n.*option"),
        (Empty, "Empty.factor does not say what it allows\n.*a default"),
        (Undecorated, "Undecorated is not a dataclass"),
    ],
)
def test_options_that_say_too_little_are_refused(options, problem, known):
    with pytest.raises(ConfigError, match=f"estimator 'new': {problem}"):
        estimator("new", options)(lambda steps, options: steps.reward)
    assert "new" not in known


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (lambda steps: steps.reward[:3], r"float64, shape \(3,\) for 4 steps"),
        (lambda steps: steps.reward[:, None], r"float64, shape \(4, 1\) for 4 steps"),
        (lambda steps: steps.time, r"int64, shape \(4,\) for 4 steps"),
        (lambda steps: steps.reward.tolist(), "list for 4 steps"),
        (lambda steps: None, "NoneType for 4 steps"),
        (lambda steps: np.where(steps.reward == 2, math.nan, 0.0), "nan for row 2 "),
        (lambda steps: np.where(steps.reward >= 1, -math.inf, 0.0), "-inf for row 1 "),
    ],
)
def test_what_is_no_advantage_is_refused(values, problem):
    estimator("new", ReturnOptions)(lambda steps, options: values(steps))
    with pytest.raises(HgpoError, match=f"estimator 'new' returned {problem}") as caught:
        advantages.compute("new", COLUMNS)
    assert caught.value.hint
