"""The paper's Figure 2 on rollouts at hand, for any weights: how far each estimator is from the oracle advantage.

usage: python tools/context_bias.py results/NAME

Reads every `runs/**/rollouts/*.parquet` that training kept (`training.episodes_every`) and writes
`analysis/context_bias.csv`: a row for each run, iteration, environment, K, kind of context and estimator, with bias,
variance, mean absolute error and the share of oracle steps (docs/estimators.md), over all oracle steps and over the
later ones alone, in which no level is missing or is the oracle. HGPO is there with alpha 0, 1 and 2, in both kinds of
weights, so this is the alpha sweep on equal rollouts. Prints the means over iterations.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from hgpo import advantages
from hgpo.config import Config, Run, load_config, plan_runs
from hgpo.errors import DataError
from hgpo.files import write_text

SCOPES = {"all": "", "later": "later_"}
COLUMNS = ["task", "trajectory", "state", "action", "reward", "invalid"]
QUANTITIES = ("bias", "variance", "mean_absolute_error")
SWEPT = ("hgpo_paper", "hgpo_upstream")
KEYS = ["environment", "K", "context", "steps", "estimator", "alpha"]


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    config = load_config(Path(sys.argv[1]) / "config.yaml")
    rows = [row for run in plan_runs(config) for row in measure(config, run)]
    if not rows:
        raise DataError(f"no run below {config.folder} kept its rollouts", "set training.episodes_every")
    table = pd.DataFrame(rows)
    out = config.folder / "analysis" / "context_bias.csv"
    write_text(out, table.to_csv(index=False, float_format="%.6g"))
    means = table.groupby(KEYS, dropna=False)[[*QUANTITIES, "oracle_share"]].mean()
    print(means.round(4).to_string())
    print(out)


def measure(config: Config, run: Run) -> Iterator[dict[str, Any]]:
    protocol = config.environment(run.environment)
    for path in sorted((run.folder(config) / "rollouts").glob("iteration-*.parquet")):
        columns = {name: values.tolist() for name, values in pd.read_parquet(path, columns=COLUMNS).items()}
        for context in ("states", "states_and_actions"):
            for alpha in (0.0, 1.0, 2.0):
                rows = advantages.diagnose(
                    columns,
                    history=run.history,
                    alpha=alpha,
                    context=context,
                    gamma=protocol.gamma,
                    invalid_penalty=protocol.invalid_penalty,
                    normalisation=protocol.normalisation,
                ).rows
                where = {"run": str(run), "iteration": int(path.stem.removeprefix("iteration-"))}
                where |= {"environment": run.environment, "K": run.history, "context": context}
                yield from estimates(rows, where, alpha)


def estimates(rows: list[dict[str, Any]], where: dict[str, Any], alpha: float) -> Iterator[dict[str, Any]]:
    """A row for each estimator and scope; those without alpha only once, with alpha 0's call."""
    values = {(row["quantity"], row["estimator"]): row["value"] for row in rows}
    for scope, prefix in SCOPES.items():
        share = values[f"{prefix}oracle_share", None]
        for name in [estimator for quantity, estimator in values if quantity == f"{prefix}bias"]:
            if alpha and name not in SWEPT:
                continue
            row = where | {"steps": scope, "estimator": name, "alpha": alpha if name in SWEPT else None}
            yield row | {"oracle_share": share} | {key: values[prefix + key, name] for key in QUANTITIES}


if __name__ == "__main__":
    main()
