"""What the upstream way of drawing validation tasks would have done here, beside the panels that were played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hgpo.envs.upstream import alfworld_games, webshop_goals
from hgpo.reporting.collect import NotMeasured, Results, data_away
from hgpo.reporting.table import Table, percent
from hgpo.tasks import load_panel
from hgpo.tasks.upstream import (
    HELD_OUT_GOALS,
    VALIDATION_SEED_OFFSET,
    Coverage,
    alfworld_rounds,
    coverage,
    webshop_leakage,
    webshop_rounds,
)

WORKERS = 128  # environments of one upstream validation
CAPTION = (
    "One validation. Upstream: as its code draws tasks, with base seed 0 (validation base seed 1000) and 128 worker "
    "groups, rebuilt on these data. Canonical: the panel played here, each task once per evaluation seed. Also trained "
    "on: tasks of the validation range that lie in the training range, by content; for WebShop of the first worker's "
    "500 validation goals. Best score: what buying the very product asked for scores, mean over the tasks; winnable: "
    "tasks where that is 1 (WebShop's own reward denies it to some)."
)


def leakage_table(results: Results) -> Table:
    """Coverage and overlap of the evaluation tasks under both protocols; ours alone where upstream has no protocol."""
    rows: list[dict[str, Any]] = []
    away = data_away(results.config)
    for environment in results.config.matrix.environments:
        data = results.config.data_folder(environment)
        if environment not in away:
            if environment == "alfworld":
                rows += _alfworld(data, results)
            elif environment == "webshop":
                rows += _webshop(data)
            rows += _canonical(results, environment)
    if not rows:
        raise NotMeasured("the prepared data are not there")
    data = pd.DataFrame(rows)
    shown = data.assign(
        ceiling=data["ceiling"].map(percent), winnable=["–" if pd.isna(n) else f"{n:.0f}" for n in data["winnable"]]
    ).rename(
        columns={"tasks": "tasks in the split", "distinct": "distinct tasks", "never": "never played"}
        | {"most": "most often", "also_trained_on": "also trained on", "ceiling": "best score %"}
    )
    return Table("leakage", "Evaluation tasks: upstream's sampling and panels", CAPTION, shown, data)


def _alfworld(data: Path, results: Results) -> list[dict[str, Any]]:
    games = alfworld_games(data)
    trained = {task.content for task in games["train"]}
    rows = []
    for split, panel in results.config.environment("alfworld").evaluation_splits.items():
        (played,) = alfworld_rounds(len(games[panel]), VALIDATION_SEED_OFFSET, WORKERS, 1)
        both = sum(task.content in trained for task in games[panel])
        rows.append(_row("alfworld", split, "upstream", coverage(len(games[panel]), played), both))
    return rows


def _webshop(data: Path) -> list[dict[str, Any]]:
    goals_of = webshop_goals(data)
    count = len(goals_of(0))
    if count <= HELD_OUT_GOALS:
        return []  # upstream would hold out every goal of so small a catalogue
    found = webshop_leakage(goals_of)
    (indices,) = webshop_rounds(count, VALIDATION_SEED_OFFSET, WORKERS, 1, training=False)
    played = [goals_of(VALIDATION_SEED_OFFSET + worker)[index] for worker, index in enumerate(indices)]
    return [_row("webshop", "test", "upstream", coverage(found.validation, played), found.in_training_range)]


def _canonical(results: Results, environment: str) -> list[dict[str, Any]]:
    protocol = results.config.environment(environment)
    train = load_panel(results.config.data_folder(environment) / "panels" / f"{protocol.train_split}.json")
    trained = {task.content for task in train.tasks}
    rows = []
    for split in protocol.evaluation_splits:
        panel = results.panels.get(f"{environment}/{split}")
        own = results.frame[(results.frame["environment"] == environment) & (results.frame["split"] == split)]
        if panel is None or own.empty:
            continue
        first = (
            own.groupby(["model", "method", "history", "training_seed", "evaluation_seed"], sort=False).ngroup() == 0
        )
        both = sum(task.content in trained for task in panel.tasks)
        played = own[first]["task"].tolist()
        row = _row(environment, split, "canonical", coverage(len(panel), played), both)
        rows.append(row | (_ceiling(results, played) if environment == "webshop" else {}))
    return rows


def _ceiling(results: Results, tasks: list[str]) -> dict[str, float]:
    from hgpo.envs.webshop.catalogue import open_catalogue
    from hgpo.envs.webshop.tasks import goal_number

    catalogue = open_catalogue(results.config.data_folder("webshop"))
    best = [catalogue.reward_ceiling(goal_number(task)) for task in tasks]
    return {"ceiling": sum(best) / len(best), "winnable": sum(score == 1 for score in best)}


def _row(environment: str, split: str, protocol: str, met: Coverage, both: int) -> dict[str, Any]:
    row: dict[str, Any] = {"environment": environment, "split": split, "protocol": protocol, "tasks": met.tasks}
    row |= {"episodes": met.episodes, "distinct": met.distinct, "never": met.never, "most": met.most}
    return row | {"also_trained_on": both, "ceiling": float("nan"), "winnable": float("nan")}
