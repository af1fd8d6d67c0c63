"""Evaluation episodes on disk: written episode by episode, read back only if they are what they claim to be.

One evaluation is one Parquet table `seed<evaluation seed>.parquet` (a row an episode), beside it
`seed<evaluation seed>.steps.parquet` (a row a step). The schema metadata key `hgpo` of both holds as JSON which
checkpoint was evaluated on which panel, and how. While an evaluation runs, its finished episodes lie in
`seed<evaluation seed>.parquet.parts/`, one file for each append.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hgpo.config import PROMPTED, SCRIPTED
from hgpo.errors import DataError
from hgpo.files import atomic_path, read_object, write_json
from hgpo.rollout.episode import Episode
from hgpo.tasks import Panel

KEY = b"hgpo"
OF_THE_MODEL = ("dtype", "engine_arguments")

# What decides the outcome of an evaluation: must be the same in every part of it.
IDENTITY = (
    "run",
    "split",
    "panel",
    "panel_hash",
    "panel_size",
    "evaluation_seed",
    "checkpoint_hash",
    "prompt",
    "sampling",
    "engine",
)

RUN_KEYS = ("model", "environment", "method", "history", "seed")

EPISODES = pa.schema(
    [
        ("task", pa.string()),
        ("task_type", pa.string()),
        ("rollout", pa.int32()),
        ("goal", pa.string()),
        ("won", pa.bool_()),
        ("score", pa.float64()),
        ("failed", pa.string()),
        ("steps", pa.int32()),
        ("reward", pa.float64()),
        ("invalid_actions", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("response_tokens", pa.int64()),
        ("truncated_prompts", pa.int32()),
        ("seed", pa.int64()),
        ("wall_s", pa.float64()),
    ]
)

STEPS = pa.schema(
    [
        ("task", pa.string()),
        ("trajectory", pa.string()),
        ("step", pa.int32()),
        ("state", pa.string()),
        ("observation", pa.string()),
        ("admissible", pa.list_(pa.string())),
        ("completion", pa.string()),
        ("think", pa.string()),
        ("action", pa.string()),
        ("invalid", pa.bool_()),
        ("reward", pa.float64()),
        ("finish", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
    ]
)


def steps_path(episodes: str | Path) -> Path:
    """Where the steps of the episodes table `episodes` lie."""
    return Path(episodes).with_suffix(".steps.parquet")


class EpisodeStore:
    """The episodes of one evaluation, kept as they finish, so that an interrupted evaluation carries on.

    path: the final table. metadata: what the evaluation is (`IDENTITY`), plus whatever else is to be recorded.

    Raises DataError if `path` or its parts belong to another evaluation, naming what differs.
    """

    def __init__(self, path: str | Path, metadata: dict[str, Any]) -> None:
        missing = [key for key in IDENTITY if key not in metadata]
        if missing:
            raise DataError(f"{path}: the metadata of an evaluation need {', '.join(missing)}")
        self.path = Path(path)
        self.metadata = json.loads(json.dumps(metadata))
        self.parts = self.path.with_name(self.path.name + ".parts")
        self.finished = self.path.exists()
        if self.finished:
            self._check_same(read_metadata(self.path), self.path)
            self.done = set(pq.read_table(self.path, columns=["task"]).column("task").to_pylist())
            return
        self._begin()
        self.done = {record["task"] for part in self._part_files() for record in _read_part(part)["episodes"]}

    def append(self, episodes: Iterable[Episode], wall_s: float) -> None:
        """Keeps finished episodes: all of them or, if interrupted, none. `wall_s`: seconds each of them took."""
        finished = list(episodes)
        twice = sorted({e.task for e in finished} & self.done)
        if twice or len({e.task for e in finished}) != len(finished):
            raise DataError(f"{self.path}: an episode of task {(twice or [finished[0].task])[0]!r} is already there")
        extra = {"seed": self.metadata["evaluation_seed"], "wall_s": float(wall_s)}
        body = {
            "episodes": [episode.record() | extra for episode in finished],
            "steps": [step for episode in finished for step in episode.step_records()],
        }
        write_json(self.parts / f"{len(self._part_files()):06d}.json", body, indent=None)
        self.done.update(episode.task for episode in finished)

    def finish(self, **totals: Any) -> None:
        """Writes the final tables, steps first, and removes the parts. `totals` join the metadata.

        Raises DataError unless there is exactly one episode for each task of the panel.
        """
        if self.finished:
            return
        size = self.metadata["panel_size"]
        if len(self.done) != size:
            raise DataError(
                f"{self.path}: {len(self.done)} of {size} tasks have an episode", "run the evaluation again to go on"
            )
        bodies = [_read_part(part) for part in self._part_files()]
        episodes = sorted((e for body in bodies for e in body["episodes"]), key=lambda e: (e["task"], e["rollout"]))
        steps = sorted((s for body in bodies for s in body["steps"]), key=lambda s: (s["trajectory"], s["step"]))
        tokens = {key: sum(e[key] for e in episodes) for key in ("prompt_tokens", "response_tokens")}
        metadata = self.metadata | tokens | {"wall_s": sum(e["wall_s"] for e in episodes)} | totals
        write_table(steps_path(self.path), steps, STEPS, metadata)
        write_table(self.path, episodes, EPISODES, metadata)
        shutil.rmtree(self.parts)
        self.finished = True

    def _begin(self) -> None:
        record = self.parts / "metadata.json"
        if record.exists():
            self._check_same(_read_part(record), self.parts)
        else:
            write_json(record, self.metadata)

    def _part_files(self) -> list[Path]:
        return sorted(self.parts.glob("[0-9]*.json"))

    def _check_same(self, there: dict[str, Any], where: Path) -> None:
        differences = describe_differences(there, self.metadata)
        if differences:
            raise DataError(
                f"{where} holds episodes of another evaluation: {'; '.join(differences)}",
                f"delete {where} to evaluate anew",
            )


def describe_differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Where the identities of two evaluations differ, as readable phrases `key: X there, Y here`."""
    flat_there, flat_here = (_flatten({key: m.get(key) for key in IDENTITY}) for m in (there, here))
    return [
        f"{key}: {_short(flat_there.get(key))} there, {_short(flat_here.get(key))} here"
        for key in sorted(flat_there | flat_here)
        if flat_there.get(key) != flat_here.get(key)
    ]


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema, metadata: dict[str, Any]) -> None:
    """Writes rows as one Parquet file, atomically, with `metadata` as JSON under the schema key `hgpo`."""
    encoded = json.dumps(metadata, sort_keys=True, ensure_ascii=False).encode("utf-8")
    table = pa.Table.from_pylist(rows, schema=schema).replace_schema_metadata({KEY: encoded})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The metadata of an episodes or steps table. Raises DataError if it is missing or unreadable."""
    return _open(path)[1]


@dataclass(frozen=True)
class Episodes:
    """Checked evaluation episodes.

    frame: a row an episode: the columns of the table, before them `model`, `environment`, `method`, `history`,
        `training_seed`, `split`, `evaluation_seed`.
    files: metadata of each file.
    """

    frame: pd.DataFrame
    files: dict[Path, dict[str, Any]]


def load_episodes(
    paths: Sequence[str | Path],
    evaluation_seeds: Sequence[int] | None = None,
    panels: Mapping[str, Panel] | None = None,
) -> Episodes:
    """Reads episodes tables and checks that together they are a whole.

    evaluation_seeds: the seeds that each run and split must have been evaluated with; without it, all must have the
        same seeds. panels: the panel of each `environment/split`, where it is at hand; an evaluation may have been
        limited to its first tasks.

    Raises DataError for: no table at all; a corrupt or truncated table; a duplicated, missing or surplus episode;
    tables of one split from different panels or with different tasks; tables of one run from different checkpoints,
    prompts or sampling, or of an environment's methods with different ones; a missing or repeated evaluation seed;
    training seeds of a cell evaluated unevenly.
    """
    if not paths:
        raise DataError("no evaluation episodes were found", "run the evaluations first")
    frames, files = [], {}
    for path in sorted(Path(p) for p in paths):
        frame, metadata = read_episodes(path)
        frames.append(frame)
        files[path] = metadata
    _check_panels(files, panels or {})
    _check_runs(files)
    _check_conditions(files)
    _check_seeds(files, evaluation_seeds)
    whole = pd.concat(frames, ignore_index=True)
    _check_tasks(whole, panels or {})
    return Episodes(whole, files)


def load_steps(path: str | Path) -> pd.DataFrame:
    """The steps table beside the episodes table `path`. Raises DataError if it does not belong to it."""
    steps, metadata = _open(steps_path(path))
    differences = describe_differences(metadata, read_metadata(path))
    if differences:
        raise DataError(f"{steps_path(path)} is of another evaluation than {path}: {'; '.join(differences)}")
    return steps.to_pandas()


def read_episodes(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One episodes table, checked in itself, and its metadata. Raises DataError."""
    table, metadata = _open(path)
    absent = [name for name in EPISODES.names if name not in table.column_names]
    if absent:
        raise DataError(f"{path}: the column {absent[0]!r} is missing", "delete it and run the evaluation again")
    frame = table.select(EPISODES.names).to_pandas()
    twice = frame["task"][frame["task"].duplicated()]
    if len(twice):
        raise DataError(f"{path}: {len(twice)} duplicated episodes, e.g. of task {twice.iloc[0]!r}", _ANEW)
    if len(frame) != metadata["panel_size"]:
        raise DataError(f"{path}: {len(frame)} episodes for a panel of {metadata['panel_size']} tasks", _ANEW)
    if (frame["seed"] != metadata["evaluation_seed"]).any():
        raise DataError(f"{path}: holds episodes of another seed than its own {metadata['evaluation_seed']}", _ANEW)
    if frame.isna().any(axis=None):
        column = frame.columns[frame.isna().any()][0]
        raise DataError(f"{path}: the column {column!r} has empty values", _ANEW)
    run = metadata["run"]
    keys = {
        "model": run["model"],
        "environment": run["environment"],
        "method": run["method"],
        "history": run["history"],
        "training_seed": run["seed"],
        "split": metadata["split"],
        "evaluation_seed": metadata["evaluation_seed"],
    }
    for position, (name, value) in enumerate(keys.items()):
        frame.insert(position, name, value)
    return frame.drop(columns="seed"), metadata


_ANEW = "delete it and run the evaluation again"


def _open(path: str | Path) -> tuple[pa.Table, dict[str, Any]]:
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        table.column_names  # noqa: B018  (raises for names that are no text)
    except FileNotFoundError:
        raise DataError(f"no episodes at {path}", "run the evaluation first") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}", _ANEW) from None
    try:
        metadata = json.loads(table.schema.metadata[KEY])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} does not say what was evaluated: no metadata {KEY.decode()!r}", _ANEW) from None
    absent = [key for key in IDENTITY if key not in metadata]
    absent += [f"run.{key}" for key in RUN_KEYS if key not in metadata.get("run", {})]
    if absent:
        raise DataError(f"{path}: its metadata lack {', '.join(absent)}", _ANEW)
    return table, metadata


def _check_panels(files: dict[Path, dict[str, Any]], panels: Mapping[str, Panel]) -> None:
    first: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, metadata in files.items():
        where = f"{metadata['run']['environment']}/{metadata['split']}"
        if where in panels and metadata["panel_hash"] != panels[where].hash:
            raise DataError(
                f"{path} was played on another panel: {_short(metadata['panel_hash'])}, "
                f"but the panel of {where} is {_short(panels[where].hash)}",
                "evaluate again on the present panel, or restore the panel",
            )
        _same(path, metadata, *first.setdefault(where, (path, metadata)), ("panel_hash", "panel_size"), where)


def _check_runs(files: dict[Path, dict[str, Any]]) -> None:
    first: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, metadata in files.items():
        run = "{model}/{environment}/{method}/K{history}/seed{seed}".format(**metadata["run"])
        keys = ("checkpoint_hash", "prompt", "sampling", "engine")
        _same(path, metadata, *first.setdefault(run, (path, metadata)), keys, run)


def _check_conditions(files: dict[Path, dict[str, Any]]) -> None:
    """What is compared was asked in the same way. Baselines have prompts of their own, models their own precision."""
    first: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, metadata in files.items():
        if metadata["run"]["method"] in (*SCRIPTED, *PROMPTED):
            continue
        sampling = {key: value for key, value in metadata["sampling"].items() if key not in OF_THE_MODEL}
        asked, environment = {"prompt": metadata["prompt"], "sampling": sampling}, metadata["run"]["environment"]
        _same(path, asked, *first.setdefault(environment, (path, asked)), ("prompt", "sampling"), environment)


def _same(
    path: Path, metadata: dict[str, Any], other: Path, known: dict[str, Any], keys: tuple[str, ...], where: str
) -> None:
    for key in keys:
        if metadata[key] != known[key]:
            raise DataError(
                f"episodes of different evaluations of {where} are mixed: {key} is {_short(metadata[key])} in {path}, "
                f"{_short(known[key])} in {other}",
                "evaluate them all in the same way",
            )


def _check_seeds(files: dict[Path, dict[str, Any]], expected: Sequence[int] | None) -> None:
    seeds: dict[tuple[str, ...], dict[int, Path]] = {}
    trained: dict[tuple[str, ...], set[int]] = {}
    for path, metadata in files.items():
        run, seed = metadata["run"], metadata["evaluation_seed"]
        cell: tuple[str, ...] = (run["model"], run["environment"], run["method"], f"K{run['history']}")
        cell += (metadata["split"],)
        have = seeds.setdefault((*cell, f"training seed {run['seed']}"), {})
        if seed in have:
            raise DataError(f"evaluation seed {seed} occurs twice: {have[seed]} and {path}", "remove one of them")
        have[seed] = path
        trained.setdefault(cell, set()).add(run["seed"])
    wanted = set(expected) if expected is not None else {s for have in seeds.values() for s in have}
    for name, have in seeds.items():
        if set(have) != wanted:
            wrong = sorted(wanted - set(have))
            what = f"evaluation seed {wrong[0]} is missing" if wrong else f"unknown seed {min(set(have) - wanted)}"
            raise DataError(f"{' '.join(name)}: {what}", "run the missing evaluation, or correct evaluation.seeds")
    splits: dict[tuple[str, ...], dict[str, set[int]]] = {}
    for cell, seeds_of_cell in trained.items():
        splits.setdefault(cell[:-1], {})[cell[-1]] = seeds_of_cell
    for cell, by_split in splits.items():
        everything = set().union(*by_split.values())
        for split, seeds_of_cell in by_split.items():
            if seeds_of_cell != everything:
                lacking = min(everything - seeds_of_cell)
                raise DataError(
                    f"{' '.join(cell)}: training seed {lacking} was not evaluated on {split}, others were",
                    "run the missing evaluation",
                )


def _check_tasks(frame: pd.DataFrame, panels: Mapping[str, Panel]) -> None:
    for (environment, split), group in frame.groupby(["environment", "split"], sort=False):
        runs = group.groupby(["model", "method", "history", "training_seed", "evaluation_seed"], sort=False)
        played = {key: frozenset(zip(rows["task"], rows["task_type"], strict=True)) for key, rows in runs}
        expected, source = next(iter(played.values())), f"another run ({next(iter(played))})"
        if panel := panels.get(f"{environment}/{split}"):
            expected = frozenset((task.id, task.type) for task in panel.tasks[: len(expected)])
            source = "the panel"
        for key, found in played.items():
            if found != expected:
                raise DataError(
                    f"{environment}/{split}: the tasks of the run {key} are not those of {source}; "
                    f"{min(found ^ expected)[0]!r} is only in one of them",
                    "evaluate it again",
                )


def _read_part(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except ValueError as error:
        raise DataError(
            f"{path} is not readable: {error}", f"delete {path.parent} and run the evaluation again"
        ) from None


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in _flatten(part, f"{prefix}.{key}".lstrip(".")).items()}


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text
