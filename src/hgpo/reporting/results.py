"""The results table: success of every method, on every split, beside its warm start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from hgpo.config import BASELINES
from hgpo.evaluation.statistics import Difference, Summary, difference, summarise
from hgpo.reporting.collect import CELL, WARM_START, Results, outcomes
from hgpo.reporting.table import Table, interval, mean_sd, percent, points

CAPTION = (
    "Success in percent: mean ± standard deviation between evaluation seeds, as in the paper; 95 % stratified "
    "interval over tasks within task type (and over training seeds, where there are several). Gain: difference to the "
    "starting checkpoint in percentage points on the same tasks, with its paired interval. Every task is played once "
    "per evaluation seed."
)


def results_table(results: Results) -> Table:
    """A row for each model, environment, split, method and K that has episodes."""
    rows = []
    for (model, environment, split), group in results.frame.groupby(["model", "environment", "split"], sort=False):
        for method, history in ordered_cells(results, group):
            cell = group[(group["method"] == method) & (group["history"] == history)]
            start = group[(group["method"] == WARM_START) & (group["history"] == history)]
            rows.append(_row(cell, start, (str(model), str(environment), str(split), method, history)))
    data = pd.DataFrame(rows)
    return Table("results", "Results", CAPTION, _display(data), data, _notes(results, data))


def trained_seeds(methods: Iterable[str], counts: Iterable[int]) -> list[str]:
    """Numbers of training seeds as they are shown: baselines have none."""
    return ["–" if method in BASELINES else str(count) for method, count in zip(methods, counts, strict=True)]


def ordered_cells(results: Results, group: pd.DataFrame) -> list[tuple[str, int]]:
    """Methods as the configuration lists them, after the baselines and the warm start; each with its K."""
    methods = results.config.matrix.methods
    cells = {(str(method), int(k)) for method, k in zip(group["method"], group["history"], strict=True)}
    rank = {name: position for position, name in enumerate(methods)}
    return sorted(cells, key=lambda c: (c[1], rank.get(c[0], -1 if c[0] == WARM_START else -2), c[0]))


def _row(cell: pd.DataFrame, start: pd.DataFrame, key: tuple[str, str, str, str, int]) -> dict[str, Any]:
    won, types = outcomes(cell)
    summary = summarise(won, types, 0)
    row: dict[str, Any] = dict(zip(["model", "environment", "split", "method", "history"], key, strict=True))
    row |= _success(summary)
    row["score"] = cell["score"].mean()
    learnt = len(start) and key[3] not in (WARM_START, *BASELINES)
    gain = difference(won, outcomes(start)[0], types, 0) if learnt else None
    row |= _gain(gain)
    row["steps"] = cell["steps"].mean()
    row["invalid_share"] = cell["invalid_actions"].sum() / max(1, cell["steps"].sum())
    row["truncated_share"] = cell["truncated_prompts"].sum() / max(1, cell["steps"].sum())
    row["failed_episodes"] = int((cell["failed"] != "").sum())
    row |= {
        "n_tasks": summary.tasks,
        "n_evaluation_seeds": summary.evaluation_seeds,
        "n_training_seeds": summary.training_seeds,
        "n_episodes": len(cell),
    }
    return row


def _success(summary: Summary) -> dict[str, float]:
    return {
        "success": summary.mean,
        "sd_evaluation_seeds": summary.sd_evaluation,
        "sd_training_seeds": summary.sd_training,
        "low": summary.low,
        "high": summary.high,
        "iqm": summary.iqm,
    }


def _gain(gain: Difference | None) -> dict[str, float]:
    missing = float("nan")
    return {
        "gain": gain.effect if gain else missing,
        "gain_low": gain.low if gain else missing,
        "gain_high": gain.high if gain else missing,
    }


def _display(data: pd.DataFrame) -> pd.DataFrame:
    records = []
    for row in data.to_dict("records"):
        record = {
            "model": row["model"],
            "environment": row["environment"],
            "split": row["split"],
            "method": row["method"],
            "K": row["history"],
            "success %": mean_sd(row["success"], row["sd_evaluation_seeds"]),
            "95 % interval": interval(row["low"], row["high"]),
            "gain over warm start": "–"
            if pd.isna(row["gain"])
            else points(row["gain"], row["gain_low"], row["gain_high"]),
        }
        if (data["environment"] == "webshop").any():
            record["score %"] = percent(row["score"]) if row["environment"] == "webshop" else "–"
        records.append(
            record
            | {
                "steps": f"{row['steps']:.1f}",
                "invalid %": percent(row["invalid_share"]),
                "tasks": row["n_tasks"],
                "evaluation seeds": row["n_evaluation_seeds"],
                "training seeds": trained_seeds([row["method"]], [row["n_training_seeds"]])[0],
            }
        )
        if (data["n_training_seeds"] > 1).any():
            spread = row["sd_training_seeds"]
            records[-1]["± between them"] = "–" if pd.isna(spread) else percent(spread)
    return pd.DataFrame(records)


def _notes(results: Results, data: pd.DataFrame) -> list[str]:
    notes = [note for row in data.to_dict("records") if (note := _gain_in_words(row))]
    notes += results.unfinished_notes()
    failed = int(data["failed_episodes"].sum())
    if failed:
        notes.append(f"{failed} episodes were lost to a failing environment; they count as not solved.")
    trained = data[~data["method"].isin([WARM_START, *BASELINES])]
    if (trained["n_training_seeds"] == 1).any():
        notes.append(
            "Where a method has one training seed, its intervals are of that checkpoint: how far another training run "
            "would end from it is not in them."
        )
    planned = len(results.config.matrix.training_seeds)
    for key, group in results.frame[results.frame["method"].isin(results.config.matrix.methods)].groupby(CELL):
        done = group["training_seed"].nunique()
        if done < planned:
            notes.append(f"{' '.join(map(str, key[:3]))} K={key[3]}: only {done} of {planned} training seeds.")
    tried = results.frame[results.frame["method"] == "reflexion"]
    for key, group in tried.groupby([*CELL, "split"]):
        first = (group["won"] & (group["rollout"] == 0)).mean()
        notes.append(
            f"{' '.join(map(str, key[:3]))} K={key[3]} ({key[4]}) is told whether it won and tries again: "
            f"{1 + group['rollout'].mean():.2f} trials a task; steps are those of all trials; "
            f"success in the first trial {percent(first)} %."
        )
    if results.not_run:
        notes.append(f"Not run: {', '.join(str(run) for run in results.not_run)}.")
    if results.left_out:
        notes.append(f"{len(results.left_out)} episodes files that the configuration does not name were left out.")
    return notes


def _gain_in_words(row: dict[str, Any]) -> str | None:
    """What the episodes say about learning, where they do not show any."""
    if pd.isna(row["gain"]) or row["gain_low"] > 0:
        return None
    cell = f"{row['method']} K={row['history']} ({row['model']}, {row['environment']}, {row['split']})"
    effect = points(row["gain"], row["gain_low"], row["gain_high"])
    if row["gain_high"] < 0:
        return f"{cell} is below its warm start: {effect} points."
    return f"No gain of {cell} over its warm start is shown: {effect} points."
