"""Advantage estimators for groups of trajectories: pure functions on flat arrays, one row a step.

>>> columns = {"task": ["a", "a"], "trajectory": [0, 1], "state": ["s", "s"], "reward": [1.0, 0.0]}
>>> compute("hgpo", columns, history=0, normalisation="mean_norm").tolist()
[0.5, -0.5]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hgpo.advantages.columns import Steps
from hgpo.advantages.diagnostics import Diagnosis, diagnose
from hgpo.advantages.registry import check_options, get, methods, option_names, options_of
from hgpo.errors import HgpoError

__all__ = ["Diagnosis", "check_options", "compute", "diagnose", "methods", "option_names", "options_of"]


def compute(method: str, columns: Mapping[str, Any], **options: Any) -> np.ndarray:
    """The advantage of every step, shape (n,), float64, in the order of the rows.

    columns: equally long lists or arrays `task`, `trajectory`, `reward`, and by method `state`, `action`, `invalid`,
    `agent`, `value`. Rows of trajectories may interleave; the order within a trajectory is time.
    options: those of the method (`option_names`), named as the flags of `hgpo advantages` with underscores.

    Finite for any finite input: what exceeds the range of float64 is held at its largest number.
    Raises ConfigError naming the option, DataError naming column and row, HgpoError naming an estimator that returns
    anything else.
    """
    estimator, chosen = get(method), check_options(method, options)
    steps = Steps(columns)
    for name in estimator.columns:
        steps.require(name, f"method {method}")
    with np.errstate(over="ignore"):
        values = estimator.function(steps, chosen)
    if not isinstance(values, np.ndarray) or values.shape != (len(steps),) or values.dtype != np.float64:
        found = f"{values.dtype}, shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise HgpoError(
            f"estimator {method!r} returned {found} for {len(steps)} steps",
            f"return a float64 array of shape ({len(steps)},), one advantage a step",
        )
    values = steps.rows(values)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise HgpoError(
            f"estimator {method!r} returned {values[row]} for row {row} (counted from 0)",
            "divide by no group's zero deviation (std + EPSILON), and clip what may overflow to -LARGEST, LARGEST "
            "(hgpo.advantages.statistics)",
        )
    return values
