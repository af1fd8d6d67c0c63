"""Tables over training: the cost of an iteration, and the sweep over HGPO's weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from hgpo import advantages
from hgpo.config import BASELINES
from hgpo.reporting.collect import CELL, WARM_START, NotMeasured, Results
from hgpo.reporting.paper import reported
from hgpo.reporting.results import results_table
from hgpo.reporting.table import Table, interval, mean_sd

PHASES = ["rollout", "advantages", "old_log_probs", "reference_log_probs", "update"]


def cost_table(results: Results) -> Table:
    """Seconds per iteration by phase, as the paper's Table 3; the estimator's part is the phase `advantages`."""
    if not results.metrics:
        raise NotMeasured("no run has training metrics")
    rows = []
    for run, metrics in results.metrics.items():
        times = metrics[[c for c in metrics if c.startswith("time/")]].rename(columns=lambda c: c.removeprefix("time/"))
        row = {"model": run.model, "environment": run.environment, "method": run.method, "history": run.history}
        row |= {phase: times[phase].mean() if phase in times else float("nan") for phase in [*PHASES, "total"]}
        row |= {"tokens_per_s": metrics["tokens_per_s"].mean(), "host_gb": metrics["memory/host_gb"].max()}
        rows.append(row | {"iterations": len(metrics), "n_training_seeds": 1})
    how = dict.fromkeys([*PHASES, "total", "tokens_per_s"], "mean")
    how |= {"host_gb": "max", "iterations": "sum", "n_training_seeds": "sum"}
    data = pd.DataFrame(rows).groupby(CELL, sort=False).agg(how).reset_index()
    data.insert(data.columns.get_loc("total") + 1, "advantages_share", data["advantages"] / data["total"])
    shown = data.rename(columns={"history": "K"} | {p: p.replace("_", " ") + " s" for p in [*PHASES, "total"]})
    shown = shown.assign(
        **{c: [f"{v:.3g}" for v in shown[c]] for c in shown if str(c).endswith(" s")},
        advantages_share=[f"{100 * v:.3f}" for v in data["advantages_share"]],
        tokens_per_s=[f"{v:.0f}" for v in data["tokens_per_s"]],
        host_gb=[f"{v:.1f}" for v in data["host_gb"]],
    ).rename(
        columns={"advantages_share": "estimator's share %", "tokens_per_s": "tokens/s", "host_gb": "host memory GB"}
        | {"n_training_seeds": "training seeds"}
    )
    cost = reported()["cost"]
    caption = (
        "Mean wall time of one training iteration in seconds, by phase; `advantages` is the estimator alone; `total` "
        "holds validation, diagnostics and checkpoints too. Host memory: peak of the training process. The paper "
        f"({cost['setting']}): {cost['total'][0]}–{cost['total'][1]} in total, {cost['estimator'][0]}–"
        f"{cost['estimator'][1]} for its estimator."
    )
    return Table("cost", "Cost of an iteration", caption, shown, data)


def ablation_table(results: Results) -> Table:
    """Success of every variant of HGPO that was evaluated, by its options, as the paper's Table 4."""
    data = results_table(results).data
    methods = [m for m in data["method"].unique() if m != WARM_START and m not in BASELINES]
    variants = [m for m in methods if results.estimator(m) == "hgpo"]
    if len(variants) < 2:
        raise NotMeasured("only one variant of HGPO was evaluated: there is no sweep over its weights")
    rows: list[dict[str, Any]] = []
    for row in data[data["method"].isin(variants)].to_dict("records"):
        options = _options(results, row["method"], row["environment"], row["history"])
        keys = ["model", "environment", "split", "history", "method"]
        rows.append({key: row[key] for key in keys} | options | {key: row[key] for key in _NUMBERS})
    found = pd.DataFrame(rows).sort_values(["model", "environment", "split", "history"], kind="stable")
    within = found.groupby("environment")[_OPTIONS].nunique().max()
    varied = [c for c in _OPTIONS if c in ("alpha", "weights") or within[c] > 1]
    found = found.drop(columns=[c for c in _OPTIONS if c not in varied]).reset_index(drop=True)
    shown = found.assign(
        success=[mean_sd(*v) for v in zip(found["success"], found["sd_evaluation_seeds"], strict=True)],
        low=[interval(*v) for v in zip(found["low"], found["high"], strict=True)],
    ).drop(columns=["sd_evaluation_seeds", "high"])
    shown = shown.rename(
        columns={"history": "K", "alpha": "α", "success": "success %", "low": "95 % interval", "n_tasks": "tasks"}
        | {"n_evaluation_seeds": "evaluation seeds", "n_training_seeds": "training seeds"}
    )
    caption = (
        "HGPO under different level weights w_k = (k + offset)^α (offset 1: `paper`, 2: `upstream`) and other options "
        "in which the variants differ. Success as in the results table."
    )
    return Table("ablation", "Variants of HGPO", caption, shown, found)


_NUMBERS = ["success", "sd_evaluation_seeds", "low", "high", "n_tasks", "n_evaluation_seeds", "n_training_seeds"]
_OPTIONS = [name for name in advantages.option_names("hgpo") if name != "history"]


def _options(results: Results, method: str, environment: str, history: int) -> dict[str, Any]:
    estimator, options = results.config.estimator_for(method, environment, history)
    chosen = dataclasses.asdict(advantages.check_options(estimator, options))
    return {name: chosen[name] for name in _OPTIONS}
