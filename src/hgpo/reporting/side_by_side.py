"""Two results folders side by side, cell by cell, with tests."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hgpo.errors import DataError
from hgpo.evaluation.statistics import compare, holm
from hgpo.reporting.collect import CELL, Results, outcomes
from hgpo.reporting.table import Table, percent, points

CAPTION = (
    "Success in percent in both results, and B minus A in percentage points on the same tasks with its 95 % paired "
    "stratified interval; p: two-sided paired permutation test over tasks, and with several training seeds over these, "
    "too; Holm: corrected over all rows."
)
KEYS = [CELL[0], CELL[1], "split", *CELL[2:]]


def side_by_side(a: Results, b: Results) -> Table:
    """A row for each cell that both results have. Raises DataError if they share none on the same tasks."""
    cells_a, cells_b = (dict(list(r.frame.groupby(KEYS, sort=False))) for r in (a, b))
    rows: list[dict[str, Any]] = []
    notes = []
    for key in [k for k in cells_a if k in cells_b]:
        one, other = cells_a[key], cells_b[key]
        if set(one["task"]) != set(other["task"]):
            notes.append(f"{_name(key)}: not compared, the tasks are not the same.")
            continue
        (x, types), (y, _) = outcomes(one), outcomes(other)
        found = compare(y, x, types, 0, *(str(part) for part in key))
        row = dict(zip(KEYS, key, strict=True)) | {"success_a": x.mean(), "success_b": y.mean()}
        row |= {"difference": found.difference.effect, "low": found.difference.low, "high": found.difference.high}
        row |= {"p": found.p, "n_tasks": found.tasks}
        row |= {f"n_evaluation_seeds_{s}": v.shape[1] for s, v in (("a", x), ("b", y))}
        rows.append(row | {f"n_training_seeds_{s}": v.shape[0] for s, v in (("a", x), ("b", y))})
    notes += [f"Only in A: {_name(key)}." for key in cells_a if key not in cells_b]
    notes += [f"Only in B: {_name(key)}." for key in cells_b if key not in cells_a]
    if not rows:
        raise DataError("the two results have no cell in common on the same tasks:\n  " + "\n  ".join(notes))
    data = pd.DataFrame(rows)
    data.insert(data.columns.get_loc("p") + 1, "p_holm", holm(data["p"].tolist()))
    return Table("comparison", "Two results side by side", CAPTION, _display(data), data, notes)


def _name(key: tuple[Any, ...]) -> str:
    model, environment, split, method, history = key
    return f"{model} {environment} {split} {method} K={history}"


def _display(data: pd.DataFrame) -> pd.DataFrame:
    shown = data[KEYS].rename(columns={"history": "K"})
    shown["A %"], shown["B %"] = data["success_a"].map(percent), data["success_b"].map(percent)
    shown["B − A"] = [points(*v) for v in zip(data["difference"], data["low"], data["high"], strict=True)]
    shown["p"], shown["p (Holm)"] = data["p"].map("{:.4f}".format), data["p_holm"].map("{:.4f}".format)
    shown["tasks"] = data["n_tasks"]
    for name in ("evaluation", "training"):
        pair = zip(data[f"n_{name}_seeds_a"], data[f"n_{name}_seeds_b"], strict=True)
        shown[f"{name} seeds"] = [f"{one}, {other}" for one, other in pair]
    return shown
