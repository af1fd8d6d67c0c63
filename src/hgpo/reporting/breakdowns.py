"""Success by task type, and what WebShop counts beside success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from hgpo.evaluation.statistics import summarise
from hgpo.evaluation.store import load_steps, steps_path
from hgpo.reporting.collect import NotMeasured, Results, outcomes
from hgpo.reporting.results import ordered_cells, trained_seeds
from hgpo.reporting.table import Table, percent

SHORT = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}


def type_outcomes(results: Results, environment: str) -> pd.DataFrame:
    """A row for each cell and task type (and type `all`): success with its interval, and the number of tasks."""
    rows: list[dict[str, Any]] = []
    own = results.frame[results.frame["environment"] == environment]
    for (model, split), group in own.groupby(["model", "split"], sort=False):
        for method, history in ordered_cells(results, group):
            cell = group[(group["method"] == method) & (group["history"] == history)]
            for kind, part in [*cell.groupby("task_type"), ("all", cell)]:
                won, types = outcomes(part)
                found = summarise(won, types, 0)
                rows.append(
                    {"model": model, "environment": environment, "split": split, "method": method}
                    | {"history": history, "type": kind}
                    | {"success": found.mean, "low": found.low, "high": found.high, "n_tasks": found.tasks}
                    | {"n_evaluation_seeds": found.evaluation_seeds, "n_training_seeds": found.training_seeds}
                )
    return pd.DataFrame(rows)


def type_tables(results: Results) -> list[Table]:
    """One table for each environment: a row for each cell, a column for each task type."""
    tables = []
    for environment in sorted(set(results.frame["environment"])):
        data = type_outcomes(results, environment)
        kinds = [k for k in SHORT if (data["type"] == k).any()]
        kinds += sorted(set(data["type"]) - set(kinds) - {"all"}) + ["all"]
        index = ["model", "split", "method", "history"]
        wide = data.pivot(index=index, columns="type", values="success")[kinds].map(percent)
        whole = data[data["type"] == "all"]
        wide = wide.reindex(pd.MultiIndex.from_frame(whole[index])).reset_index()
        wide["evaluation seeds"] = whole["n_evaluation_seeds"].tolist()
        wide["training seeds"] = trained_seeds(whole["method"], whole["n_training_seeds"])
        caption = (
            f"Success in percent by task type on {environment}, mean over tasks, evaluation seeds and training seeds; "
            f"tasks: {_counts(data, kinds)}. The CSV holds 95 % intervals."
        )
        shown = wide.rename(columns={"history": "K"} | SHORT)
        tables.append(Table(f"types_{environment}", f"{environment}: success by task type", caption, shown, data))
    return tables


def _counts(data: pd.DataFrame, kinds: list[str]) -> str:
    parts = []
    for split, group in data.groupby("split", sort=False):
        n = group.groupby("type")["n_tasks"].first()
        parts.append(f"{split} " + ", ".join(f"{SHORT.get(k, k)} {n[k]}" for k in kinds if k in n.index))
    return "; ".join(parts)


def webshop_table(results: Results) -> Table:
    """WebShop's task score, success and purchases."""
    own = results.frame[results.frame["environment"] == "webshop"]
    if own.empty:
        raise NotMeasured("WebShop was not evaluated")
    purchases = _purchases(results)
    rows: list[dict[str, Any]] = []
    for (model, split), group in own.groupby(["model", "split"], sort=False):
        for method, history in ordered_cells(results, group):
            cell = group[(group["method"] == method) & (group["history"] == history)]
            bought = purchases.get((str(model), str(split), method, history), float("nan"))
            rows.append(
                {"model": model, "environment": "webshop", "split": split, "method": method, "history": history}
                | {"score": cell["score"].mean(), "success": cell["won"].mean(), "purchases": bought}
                | {"n_tasks": cell["task"].nunique()}
                | {"n_evaluation_seeds": cell["evaluation_seed"].nunique()}
                | {"n_training_seeds": cell["training_seed"].nunique()}
            )
    data = pd.DataFrame(rows)
    shares = ["score", "success", "purchases"]
    shown = (
        data.drop(columns="environment")
        .assign(**{key: data[key].map(percent) for key in shares})
        .assign(n_training_seeds=trained_seeds(data["method"], data["n_training_seeds"]))
        .rename(
            columns={"history": "K", "n_tasks": "tasks"}
            | {"n_evaluation_seeds": "evaluation seeds", "n_training_seeds": "training seeds"}
            | {key: f"{key} %" for key in shares}
        )
    )
    caption = (
        "Score: mean task score; success: purchases of score 1; purchases: episodes that bought anything. What "
        "the tasks allow at best is in the table of the evaluation tasks."
    )
    return Table("webshop", "WebShop: score, success, purchases", caption, shown, data)


def _purchases(results: Results) -> dict[tuple[str, str, str, int], float]:
    """Share of episodes that bought something, by (model, split, method, K), from the actions on disk."""
    bought: dict[tuple[str, str, str, int], list[float]] = {}
    for path, metadata in results.episodes.files.items():
        run = metadata["run"]
        if run["environment"] == "webshop" and (share := _share_bought(path, metadata["panel_size"])) is not None:
            bought.setdefault((run["model"], metadata["split"], run["method"], run["history"]), []).append(share)
    return {cell: sum(shares) / len(shares) for cell, shares in bought.items()}


def _share_bought(path: Path, tasks: int) -> float | None:
    steps = steps_path(path)
    if not steps.exists():
        return None
    played = pq.read_table(path, columns=["task", "rollout"]).to_pylist()
    last = {f"{row['task']}#{row['rollout']}" for row in played}  # the trial of a task that its outcome is of
    table = load_steps(path)
    table = table[table["trajectory"].isin(last)]
    actions = table["action"].str.strip().str.lower()
    buys = [a == "click[buy now]" and a in offered for a, offered in zip(actions, table["admissible"], strict=True)]
    return table.loc[buys, "task"].nunique() / tasks
