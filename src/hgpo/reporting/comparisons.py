"""One method against every other: effect, interval, test, and what the panel could have shown."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from hgpo.config import BASELINES
from hgpo.evaluation.statistics import compare, holm
from hgpo.reporting.collect import WARM_START, NotMeasured, Results, outcomes
from hgpo.reporting.table import Table, points

CAPTION = (
    "Difference in success, first method minus second, in percentage points on the same tasks, with its 95 % paired "
    "stratified interval; p: two-sided paired permutation test over tasks (each task averaged over its seeds), and "
    "with several training seeds over these, too; Holm: corrected over all rows. Detectable: the smallest difference "
    "that the test finds with power 0.8 at level 0.05."
)


def comparisons_table(results: Results) -> Table:
    """A row for each model, environment, split and K, and each method beside the first: HGPO, if it ran."""
    rows: list[dict[str, Any]] = []
    for (model, environment, split, history), group in results.frame.groupby(
        ["model", "environment", "split", "history"], sort=False
    ):
        ran = [m for m in results.config.matrix.methods if (group["method"] == m).any()]
        first = reference_method(results, ran)
        if first is None:
            continue
        for second in [m for m in ran if m != first]:
            a, types = outcomes(group[group["method"] == first])
            b, _ = outcomes(group[group["method"] == second])
            found = compare(a, b, types, 0, str(model), str(environment), str(split), first, second, int(history))
            rows.append(
                {"model": model, "environment": environment, "split": split, "history": history}
                | {"first": first, "second": second, "difference": found.difference.effect}
                | {"low": found.difference.low, "high": found.difference.high, "p": found.p}
                | {"detectable": found.detectable, "n_tasks": found.tasks, "n_evaluation_seeds": a.shape[1]}
                | {"n_training_seeds_first": a.shape[0], "n_training_seeds_second": b.shape[0]}
            )
    if not rows:
        raise NotMeasured("no two methods were evaluated at the same K")
    data = pd.DataFrame(rows)
    data.insert(data.columns.get_loc("p") + 1, "p_holm", holm(data["p"].tolist()))
    title = "HGPO against the other methods" if set(data["first"]) == {"hgpo"} else "Methods against each other"
    return Table("comparisons", title, CAPTION, _display(data), data, _notes(results, data))


def reference_method(results: Results, ran: list[str]) -> str | None:
    """The method called `hgpo`, else the first one with that estimator, else the first that was trained."""
    trained = [m for m in ran if m not in (WARM_START, *BASELINES)]
    own = [m for m in trained if results.estimator(m) == "hgpo"]
    return "hgpo" if "hgpo" in own else next(iter([*own, *trained]), None)


def _display(data: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "model": row["model"],
                "environment": row["environment"],
                "split": row["split"],
                "K": row["history"],
                "methods": f"{row['first']} − {row['second']}",
                "difference": points(row["difference"], row["low"], row["high"]),
                "p": f"{row['p']:.4f}",
                "p (Holm)": f"{row['p_holm']:.4f}",
                "detectable": "–" if math.isnan(row["detectable"]) else f"{100 * row['detectable']:.1f}",
                "tasks": row["n_tasks"],
                "evaluation seeds": row["n_evaluation_seeds"],
                "training seeds": f"{row['n_training_seeds_first']}, {row['n_training_seeds_second']}",
            }
            for row in data.to_dict("records")
        ]
    )


def _notes(results: Results, data: pd.DataFrame) -> list[str]:
    shown = int((data["p_holm"] < 0.05).sum())
    notes = [f"{shown} of {len(data)} differences are significant at 0.05 after Holm's correction."]
    if data[["n_training_seeds_first", "n_training_seeds_second"]].to_numpy().min() == 1:
        notes.append(
            "Where a method has one training seed, interval, test and what is detectable are of that checkpoint, not "
            "of the method: how much another training run would differ is not in them."
        )
    return notes + results.unfinished_notes()
