"""Training checkpoints: atomic, rotating, and refused when they belong to another configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgpo.errors import CheckpointError, ConfigError
from hgpo.files import atomic_folder, json_differences, read_object, write_json


@dataclass
class Progress:
    """How far a run has come.

    iteration: completed iterations. All random streams are functions of (seed, iteration), so no generator state has
    to be kept. best: iteration, success and score of the best validation so far; since: validations since then.
    unvalidated: what was measured of the last iteration, if its validation was cut short; else empty.
    """

    iteration: int = 0
    best: dict[str, float] = field(default_factory=dict)
    since: int = 0
    unvalidated: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    folder: Path, progress: Progress, identity: dict[str, Any], keep: int, write: Callable[[Path], None]
) -> Path:
    """Writes `folder/iteration-NNNNNN` and then drops all but the newest `keep` checkpoints.

    write: fills a folder with policy, optimizer and whatever else the learner needs.
    Raises CheckpointError if it cannot be written, e.g. on a full disk; the checkpoints before it are all kept then.
    """
    path = folder / f"iteration-{progress.iteration:06d}"
    with written_whole(path) as temporary:
        write(temporary)
        write_json(temporary / "state.json", {"progress": vars(progress), "identity": identity})
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def holds_state(path: Path, progress: Progress, identity: dict[str, Any]) -> bool:
    """Whether a checkpoint says the same as a new one would."""
    try:
        state = read_object(path / "state.json")
    except (OSError, ValueError):
        return False
    now = json.loads(json.dumps({"progress": vars(progress), "identity": identity}))
    return all(state.get(key) == value for key, value in now.items())


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """`atomic_folder` whose failures to write are one message."""
    try:
        with atomic_folder(path) as temporary:
            yield temporary
    except CheckpointError:
        raise
    except Exception as error:  # the libraries raise anything from OSError to SafetensorError
        parent = next(p for p in path.parents if p.exists())
        raise CheckpointError(
            f"{path} could not be written ({shutil.disk_usage(parent).free / 2**30:.1f} GiB are free there): "
            f"{type(error).__name__}: {error}",
            "make room and run the same command again; it goes on from the newest checkpoint",
        ) from None


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("iteration-*") if (path / "state.json").is_file())


def find_checkpoint(
    folder: Path, identity: dict[str, Any], allow_change: bool = False
) -> tuple[Path, Progress, list[str]] | None:
    """(folder, progress, differences of the configuration) of the newest checkpoint, or None if there is none.

    Raises ConfigError with the differences if it was made under another configuration and `allow_change` is not
    set, CheckpointError if it is damaged.
    """
    found = list_checkpoints(folder)
    newest = max((path for path in folder.glob("iteration-*") if path.is_dir()), default=None)
    if newest and newest not in found:  # they are written whole
        raise damaged(newest, FileNotFoundError("no state.json"))
    if not found:
        return None
    path = found[-1]
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        progress, before = Progress(**state["progress"]), state["identity"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None
    differences = compare(before, identity)
    if differences and not allow_change:
        raise ConfigError(
            f"{folder.parent} was trained under another configuration: " + "; ".join(differences),
            "restore that configuration, give the new one another `name`, delete the run's folder, or go on all the "
            "same with --allow-config-change",
        )
    return path, progress, differences


def damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} cannot be loaded: {type(error).__name__}: {error}",
        f"delete {path}; training then goes on from the one before",
    )


def compare(old: Any, new: Any) -> list[str]:
    """The differences of two JSON values, one line each: `key: was old, now new`."""
    return [f"{'.'.join(key)}: was {was!r}, now {now!r}" for key, was, now in json_differences(old, new)]
