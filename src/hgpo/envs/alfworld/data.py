"""Preparing ALFWorld's games: generated, from the official release, or from a local mirror.

The prepared folder holds `games/<split>/<task>/<trial>/{game.tw-pddl,traj_data.json}` and `index.json`: the tasks with
their content hashes. The index is written last; with it the folder is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import click

from hgpo.config.alfworld import AlfworldData
from hgpo.envs.alfworld.compiled import cache_folder, parse_game
from hgpo.envs.alfworld.generator import generate
from hgpo.envs.alfworld.sources import (
    GAME,
    SPLITS,
    TRAJECTORY,
    UNSUPPORTED,
    FolderSource,
    Source,
    ZipSource,
    open_source,
)
from hgpo.envs.download import download
from hgpo.errors import DataError
from hgpo.files import sha256_json, write_json
from hgpo.streams import stream
from hgpo.tasks import Task

INDEX = "index.json"
# the official text games and their trial descriptions: path below the releases' address, sha256
OFFICIAL = (
    ("0.4.2/json_2.1.3_tw-pddl.zip", "5df77ea759f2211a4106082839ddbbb790f1ba4e7d097ed732cf453f72aa36cf"),
    ("0.2.2/json_2.1.1_json.zip", "25171f16e20ad7b048c47275c45b0babf3aa1cbab29cec97387922350a9844bc"),
)
OFFICIAL_GAMES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
MEND = "delete the folder and run `hgpo prepare-data`"


def prepare(settings: AlfworldData, folder: Path, workers: int | None = None) -> None:
    """Writes the games of `settings` and their index to `folder`. Does nothing if they are already there and whole.

    workers: processes that make generated games; by default one per available core.
    """
    folder = Path(folder)
    wanted = sha256_json(settings.model_dump(mode="json"))
    if _is_whole(folder, wanted):
        return
    (folder / INDEX).unlink(missing_ok=True)
    staging = folder / f".staging-{wanted[:16]}"
    if settings.source == "generated":
        generate(settings, staging, workers or len(os.sched_getaffinity(0)), report=_tell)
        source: Source = FolderSource(staging / "games")
        made = {str(split): sorted(source.trials(split)) for split in settings.games}
        splits = {split: _select(tasks, split, settings) for split, tasks in made.items()}
    else:
        source = _official(settings) if settings.source == "official" else _mirror(Path(str(settings.mirror)))
        splits = {split: _select(_playable(source, split), split, settings) for split in SPLITS}
        if not any(splits.values()):
            raise DataError(f"{source.name} holds no ALFWorld game", "check the path of the mirror")
    index = {split: [_take(source, task, staging) for task in tasks] for split, tasks in sorted(splits.items())}
    games = folder / "games"
    if games.is_symlink():
        games.unlink()  # what it leads to is another's
    elif games.exists():
        shutil.rmtree(games)
    os.replace(staging / "games", games)
    shutil.rmtree(staging)
    write_json(folder / INDEX, {"settings": wanted, "source": settings.source, "splits": index}, indent=1)


def _mirror(path: Path) -> Source:
    if not path.exists():
        raise DataError(
            f"data.alfworld.mirror: there is no {path}",
            "name the folder or archive of a copy of the games, or set data.alfworld.source: official to download them",
        )
    return open_source(path)


def list_tasks(folder: Path, split: str) -> list[Task]:
    """The tasks of a split, sorted by id; empty if the data have none.

    Raises DataError if the folder is not prepared or a game file is missing.
    """
    folder = Path(folder)
    tasks = [Task(**task) for task in _index(folder)["splits"].get(split, [])]
    for task in tasks:
        if not (folder / "games" / task.id / GAME).is_file():
            raise DataError(f"game file {folder / 'games' / task.id / GAME} is missing", MEND)
    return sorted(tasks, key=lambda task: task.id)


def content_of(folder: Path, task: str) -> str:
    """The sha256 of a task's game file as it lies there now."""
    try:
        return hashlib.sha256((Path(folder) / "games" / task / GAME).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"game file of {task} cannot be read: {error}", MEND) from None


def _index(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no prepared ALFWorld games", "run `hgpo prepare-data`") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / INDEX} cannot be read: {error}", MEND) from None


def _is_whole(folder: Path, wanted: str) -> bool:
    try:
        index = _index(folder)
        if index["settings"] != wanted:
            return False
        return all(content_of(folder, task["id"]) == task["content"] for s in index["splits"].values() for task in s)
    except (DataError, KeyError, TypeError):
        return False


def _official(settings: AlfworldData) -> Source:
    place = cache_folder() / "official"
    files = [
        download(f"{settings.official_url}/{path}", place / path.split("/")[-1], sha256, report=_tell)
        for path, sha256 in OFFICIAL
    ]
    return ZipSource(*files)


def _playable(source: Source, split: str) -> list[str]:
    """The sorted trials of a split that have a game.

    The official trajectory files include trials that were never games. So one without its game is an error only if
    the split has not all its official games.
    """
    trials = [task for task in sorted(source.trials(split)) if not any(word in task for word in UNSUPPORTED)]
    games = [task for task in trials if source.has(task, GAME)]
    if len(games) < min(len(trials), OFFICIAL_GAMES[split]):
        first = next(task for task in trials if not source.has(task, GAME))
        raise DataError(
            f"{source.name}: {len(trials) - len(games)} trials of {split} lack their game file, the first is "
            f"{first}/{GAME}",
            "restore the files from the data's source, or delete these trials' folders",
        )
    return games


def _select(tasks: list[str], split: str, settings: AlfworldData) -> list[str]:
    """The tasks of the wanted types, and of these at most the limit, drawn by the seed."""
    if settings.task_types is not None:
        tasks = [task for task in tasks if _type(task) in settings.task_types]
    limit = {str(name): limit for name, limit in settings.limits.items()}.get(split)
    if limit is None or limit >= len(tasks):
        return tasks
    order = stream(settings.seed, "panel", "alfworld", "limit", split).permutation(len(tasks))
    return sorted(tasks[i] for i in order[:limit])


def _type(task: str) -> str:
    return task.split("/")[1].split("-")[0]


def _take(source: Source, task: str, staging: Path) -> dict[str, Any]:
    """Checks a game and puts it, with what experts need of its trajectory, below `staging`. Returns its index entry.

    Raises DataError if a file is missing, truncated, or not a game.
    """
    raw = source.read(task, GAME)
    game = parse_game(raw, f"{source.name}/{task}/{GAME}")
    trajectory = _trajectory(source, task)
    place = staging / "games" / task
    place.mkdir(parents=True, exist_ok=True)
    (place / GAME).write_bytes(raw)
    (place / TRAJECTORY).write_text(json.dumps(trajectory, sort_keys=True), encoding="utf-8")
    goal = re.search(r"Your task is to: (.*?)\.?\"", game["grammar"])
    return {
        "id": task,
        "type": trajectory["task_type"],
        "content": hashlib.sha256(raw).hexdigest(),
        "goal": goal.group(1) if goal else "",
    }


def _trajectory(source: Source, task: str) -> dict[str, Any]:
    raw = source.read(task, TRAJECTORY)
    try:
        whole = json.loads(raw)
        return {
            "task_id": whole["task_id"],
            "task_type": whole["task_type"],
            "pddl_params": whole["pddl_params"],
            "scene": {key: whole["scene"][key] for key in ("scene_num", "floor_plan")},
        }
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{source.name}/{task}/{TRAJECTORY} is truncated or no trajectory ({len(raw)} bytes)",
            "restore the file from the data's source",
        ) from None


def _tell(message: str) -> None:
    click.echo(message, err=True)
