"""Every method against every other and against the warm start, on the same tasks, with Holm's correction over all.

usage: python tools/all_pairs.py results/NAME

`tables/comparisons` compares HGPO with each method; this adds the other pairs: `analysis/all_pairs.csv`, a row for each
split, K and pair, with difference, paired interval, p, p after Holm, and n (docs/statistics.md).
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from hgpo.config import load_config
from hgpo.evaluation.statistics import compare, holm
from hgpo.files import write_text
from hgpo.reporting.collect import WARM_START, load_results, outcomes

KEYS = ["model", "environment", "split", "history"]


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    results = load_results(load_config(Path(sys.argv[1]) / "config.yaml"))
    rows: list[dict[str, Any]] = []
    for key, group in results.frame.groupby(KEYS, sort=False):
        ran = [m for m in [*results.config.matrix.methods, WARM_START] if (group["method"] == m).any()]
        for first, second in combinations(ran, 2):
            a, types = outcomes(group[group["method"] == first])
            b, _ = outcomes(group[group["method"] == second])
            model, environment, split, history = key
            # the streams of tables/comparisons, so that a pair has the same numbers in both
            found = compare(a, b, types, 0, str(model), str(environment), str(split), first, second, int(history))
            rows.append(
                dict(zip(KEYS, key, strict=True))
                | {"first": first, "second": second, "difference": found.difference.effect}
                | {"low": found.difference.low, "high": found.difference.high, "p": found.p, "n_tasks": found.tasks}
                | {"n_evaluation_seeds": a.shape[1]}
                | {"n_training_seeds_first": len(a), "n_training_seeds_second": len(b)}
            )
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("p") + 1, "p_holm", holm(table["p"].tolist()))
    out = results.config.folder / "analysis" / "all_pairs.csv"
    write_text(out, table.to_csv(index=False, float_format="%.6g"))
    print(table.drop(columns="model").round(4).to_string(index=False))
    print(out)


if __name__ == "__main__":
    main()
