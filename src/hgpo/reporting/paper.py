"""Table 1 in the paper's form: our numbers beside the reported ones."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import pandas as pd

from hgpo.config import Config
from hgpo.reporting.collect import Results
from hgpo.reporting.results import trained_seeds
from hgpo.reporting.table import NOT_RUN, Table

COLUMNS = {
    "alfworld/in_domain": "ALFWorld in",
    "alfworld/out_of_domain": "ALFWorld out",
    "webshop/score": "WebShop score",
    "webshop/success": "WebShop success",
}
SEEDS = {"evaluation_seed": "evaluation seeds", "training_seed": "training seeds"}
CAPTION = (
    "Percent; ours: mean over tasks, evaluation seeds and training seeds; paper: as reported ({source}); difference: "
    "ours minus the paper's; seeds: how many of ours. `not run`: not part of this experiment; `–`: the paper reports "
    "no such number. Numbers are comparable only where model, tasks and training protocol are the paper's."
)


def reported() -> dict[str, Any]:
    """The numbers of the paper, with their source."""
    return json.loads(files("hgpo.reporting").joinpath("paper.json").read_text(encoding="utf-8"))


def paper_table(results: Results) -> Table:
    """A row for each model, method and K that the paper reports or that we ran."""
    paper = reported()
    ours = _our_numbers(results)
    known = {name: _paper_model(results.config, name, paper["models"]) for name in results.config.matrix.models}
    rows: list[dict[str, Any]] = []
    for row in paper["results"]:
        matches = [
            key
            for key in ours
            if known[key[0]] == row["model"] and key[1] == row["method"] and row["history"] in (None, key[2])
        ]
        for key in matches or [(row["model"], row["method"], row["history"])]:
            rows.append(_row(key, ours.get(key, {}), row))
    shown = {(row["model"], row["method"], row["history"]) for row in rows}
    rows += [_row(key, numbers, {}) for key, numbers in ours.items() if key not in shown]
    data = pd.DataFrame(rows)
    return Table("paper", "Beside the paper's Table 1", CAPTION.format(source=paper["source"]), _display(data), data)


def _paper_model(config: Config, name: str, models: dict[str, str]) -> str | None:
    """Which of the paper's models a model of the configuration is, by the name of its checkpoint."""
    checkpoint = PurePath(config.models[name].source).name.lower()
    return next((label for label, published in models.items() if published.lower() == checkpoint), None)


def _our_numbers(results: Results) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Percentages by (model, method, K), keyed as the paper's columns, and the numbers of seeds behind them."""
    numbers: dict[tuple[str, str, int], dict[str, Any]] = {}
    groups = results.frame.groupby(["model", "method", "history", "environment", "split"], sort=False)
    for (model, method, history, environment, split), cell in groups:
        row = numbers.setdefault((model, method, int(history)), {})
        if environment == "webshop":
            if split == "test":
                row |= {"webshop/score": 100 * cell["score"].mean(), "webshop/success": 100 * cell["won"].mean()}
        else:
            row[f"{environment}/{split}"] = 100 * cell["won"].mean()
    for (model, method, history), cell in results.frame.groupby(["model", "method", "history"], sort=False):
        by_split = cell.groupby(["environment", "split"])
        for seeds in SEEDS:
            counts = sorted(set(by_split[seeds].nunique()))
            shown = trained_seeds([method] * len(counts), counts) if seeds == "training_seed" else map(str, counts)
            numbers[model, method, int(history)][seeds] = " to ".join(dict.fromkeys([*shown]))
    return numbers


def _row(key: tuple[Any, ...], ours: dict[str, Any], paper: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": key[0], "method": key[1], "history": key[2]}
    row |= {seeds: ours.get(seeds, "–") for seeds in SEEDS}
    for column in COLUMNS:
        mine, theirs = ours.get(column, float("nan")), paper.get(column, float("nan"))
        row |= {f"{column}/ours": mine, f"{column}/paper": theirs, f"{column}/difference": mine - theirs}
    return row


def _display(data: pd.DataFrame) -> pd.DataFrame:
    shown = pd.DataFrame({"model": data["model"], "method": data["method"]})
    shown["K"] = ["–" if pd.isna(k) else str(int(k)) for k in data["history"]]
    for column, heading in COLUMNS.items():
        for part, absent, sign in (("ours", NOT_RUN, ""), ("paper", "–", ""), ("difference", "–", "+")):
            shown[f"{heading}: {part}"] = [absent if pd.isna(v) else f"{v:{sign}.1f}" for v in data[f"{column}/{part}"]]
    for seeds, heading in SEEDS.items():
        shown[heading] = data[seeds]
    return shown
