"""Everything an experiment left on disk, read and checked as one whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hgpo.config import BASELINES, Config, Run, plan_runs
from hgpo.errors import DataError
from hgpo.evaluation.statistics import Array
from hgpo.evaluation.store import Episodes, load_episodes
from hgpo.files import read_object
from hgpo.tasks import Panel, load_panel

WARM_START = "warm_start"
CELL = ["model", "environment", "method", "history"]


def data_away(config: Config) -> list[str]:
    """The environments of the matrix whose prepared data are not on this machine."""
    return [e for e in config.matrix.environments if not (config.data_folder(e) / "prepared.json").is_file()]


class NotMeasured(Exception):
    """A table or figure that cannot be made, because what it shows was not measured; the message says what."""


@dataclass(frozen=True)
class Results:
    """The results of one configuration.

    episodes: checked evaluation episodes of the planned runs, their warm start and the baselines.
    metrics: a row an iteration, for each training run that has any; with `iteration` and the keys of metrics.jsonl.
    finished: the record of each finished training run. panels: evaluation panels by `environment/split`, if present.
    not_run: planned runs without evaluation episodes. left_out: episodes files that the configuration does not name.
    """

    config: Config
    episodes: Episodes
    metrics: dict[Run, pd.DataFrame]
    finished: dict[Run, dict[str, Any]]
    panels: dict[str, Panel]
    not_run: list[Run] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)

    @property
    def frame(self) -> pd.DataFrame:
        return self.episodes.frame

    @property
    def unfinished(self) -> dict[Run, int]:
        """Iterations done by each run that was evaluated and has training metrics, but no record of having finished."""
        played = {Run(**metadata["run"]) for metadata in self.episodes.files.values()}
        open_runs = [run for run in self.metrics if run in played and run not in self.finished]
        return {run: int(self.metrics[run]["iteration"].max()) + 1 for run in open_runs}

    def unfinished_notes(self) -> list[str]:
        """A sentence for each unfinished run, as tables of the evaluation carry it."""
        return [
            f"{run} has not finished: evaluated is a checkpoint of before its end; its training metrics reach "
            f"{done} of {self.config.training_for(run.environment).iterations} iterations."
            for run, done in self.unfinished.items()
        ]

    def estimator(self, method: str) -> str:
        """The estimator behind a method's name; the name itself for the warm start and the baselines."""
        return method if method == WARM_START or method in BASELINES else self.config.method(method).estimator


def load_results(config: Config) -> Results:
    """Reads what `config` has produced so far.

    Raises DataError if there are no episodes, if they are not a whole (`load_episodes`), if a file does not lie
    where its metadata say, or if it comes from another checkpoint than the one its run finished with.
    """
    runs = plan_runs(config)
    finished = {run: record for run in runs if (record := read_json(run.folder(config) / "finished.json"))}
    metrics = {run: frame for run in runs if (frame := read_metrics(run.folder(config) / "metrics.jsonl")) is not None}
    files, not_run = _planned_files(config, runs)
    left_out = sorted(set((config.folder / "episodes").glob("*/*/*/K*/seed*/*/seed*[0-9].parquet")) - set(files))
    if not files:
        raise DataError(
            f"there are no evaluation episodes of this configuration below {config.folder / 'episodes'}",
            "run the evaluations first (`snakemake` runs everything)",
        )
    panels = _panels(config)
    episodes = load_episodes(list(files), config.evaluation.seeds, panels)
    for path, (run, split) in files.items():
        _check_origin(config, path, run, split, episodes.files[path], finished)
    return Results(config, episodes, metrics, finished, panels, not_run, left_out)


def outcomes(cell: pd.DataFrame, column: str = "won") -> tuple[Array, list[str]]:
    """One cell's episodes as an array (training seeds, evaluation seeds, tasks), and the type of each task."""
    ordered = cell.sort_values(["training_seed", "evaluation_seed", "task"], kind="stable")
    shape = tuple(int(ordered[key].nunique()) for key in ("training_seed", "evaluation_seed", "task"))
    return ordered[column].to_numpy(np.float64).reshape(shape), ordered["task_type"].iloc[: shape[2]].tolist()


def read_metrics(path: Path) -> pd.DataFrame | None:
    """A run's metrics.jsonl, or None if there is none. Raises DataError naming the line that is not JSON."""
    if not path.exists():
        return None
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append({"iteration": json.loads(line)["iteration"]} | json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}, line {number}: not a JSON object with `iteration`", "train the run anew"
            ) from None
    return pd.DataFrame(rows) if rows else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, or None if it does not exist. Raises DataError if it is unreadable."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}", "delete it and run its step again") from None


def warm_start_runs(config: Config) -> list[Run]:
    """The starting checkpoint of each model, environment and K, seen as a run of the method `warm_start`."""
    m = config.matrix
    return [
        Run(model, environment, WARM_START, history, config.warm_start_for(environment).seed)
        for model, environment, history in product(m.models, m.environments, m.history)
    ]


def _planned_files(config: Config, runs: list[Run]) -> tuple[dict[Path, tuple[Run, str]], list[Run]]:
    """The episodes files that exist, and the planned runs that have none.

    Raises DataError for a run that has episodes of some of its splits only.
    """
    files: dict[Path, tuple[Run, str]] = {}
    not_run = []
    for run in [*runs, *warm_start_runs(config), *_baseline_runs(config)]:
        found = {
            path: (run, split)
            for split in config.environment(run.environment).evaluation_splits
            for seed in config.evaluation.seeds
            if (path := run.episodes(config, split, seed)).exists()
        }
        files |= found
        without = set(config.environment(run.environment).evaluation_splits) - {split for _, split in found.values()}
        if found and without:
            raise DataError(
                f"{run} has evaluation episodes, but none of the split {min(without)!r}",
                "run that evaluation (`snakemake` runs what is missing)",
            )
        if not found and run in runs:
            not_run.append(run)
    return files, not_run


def _baseline_runs(config: Config) -> list[Run]:
    m = config.matrix
    found = []
    for model, environment, method, history in product(m.models, m.environments, BASELINES, m.history):
        folder = config.folder / "episodes" / model / environment / method / f"K{history}"
        seeds = sorted(int(p.name[4:]) for p in folder.glob("seed*") if p.name[4:].isdigit())
        found += [Run(model, environment, method, history, seed) for seed in seeds]
    return found


def _panels(config: Config) -> dict[str, Panel]:
    """Each evaluation panel that is there; tables may be remade from episodes alone, without the data."""
    panels = {}
    for environment in config.matrix.environments:
        for split, name in config.environment(environment).evaluation_splits.items():
            path = config.data_folder(environment) / "panels" / f"{name}.json"
            if path.exists():
                panels[f"{environment}/{split}"] = load_panel(path)
    return panels


def _check_origin(
    config: Config, path: Path, run: Run, split: str, metadata: dict[str, Any], finished: dict[Run, dict[str, Any]]
) -> None:
    stated = Run(**metadata["run"])
    if (stated, metadata["split"]) != (run, split) or path.name != f"seed{metadata['evaluation_seed']}.parquet":
        raise DataError(
            f"{path} holds the episodes of {stated}, {metadata['split']}, seed {metadata['evaluation_seed']}: "
            "it does not belong there",
            "move it back, or delete it and run the evaluation again",
        )
    if run.method == WARM_START:
        start = read_json(run.start_folder(config) / "checkpoint.json")
        expected = _stated(start, "hash", f"the record of the start of {run}") if start else None
    else:
        record = finished.get(run)
        expected = _stated(record, "checkpoint_hash", f"finished.json of {run}") if record else None
    if expected is not None and metadata["checkpoint_hash"] != expected:
        raise DataError(
            f"{path} was played by another checkpoint ({metadata['checkpoint_hash'][:12]}) than the one that {run} "
            f"finished with ({expected[:12]})",
            "evaluate the run again",
        )


def _stated(record: dict[str, Any], key: str, what: str) -> str:
    if not isinstance(record.get(key), str):
        raise DataError(f"{what} does not state its {key!r}: it was damaged", "run its step again")
    return record[key]
