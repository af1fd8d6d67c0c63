"""Training checkpoints: atomic, rotating, and refused when they belong to another configuration."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgpo.errors import CheckpointError, ConfigError
from hgpo.files import atomic_folder, json_differences, read_object, sha256_file, write_json

LATER_KEYS = ("estimator_options", "estimator_source")  # of an identity; older checkpoints lack them


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
        hashes = {file.name: sha256_file(file) for file in sorted(temporary.glob("*.pt"))}
        write_json(temporary / "state.json", {"progress": vars(progress), "identity": identity, "sha256": hashes})
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


OWNER = "owner.json"  # in a checkpoint folder that lies elsewhere than its run


def claim(folder: Path, run_folder: Path) -> None:
    """Writes beside checkpoints of which run folder they are. Raises CheckpointError if they are of another."""
    path, own = folder / OWNER, str(run_folder.resolve())
    try:
        owner = read_object(path).get("run") if path.exists() else own
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}", f"delete it if {folder} is of {own}") from None
    if owner != own:
        raise CheckpointError(
            f"the checkpoints in {folder} are those of {owner}, not of {own}",
            f"set CHECKPOINTS_DIR to another folder, or delete {path} if the results were moved",
        )
    write_json(path, {"run": own})


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return [path for path in _folders(folder) if (path / "state.json").is_file()]


def _folders(folder: Path) -> list[Path]:
    named = [path for path in folder.glob("iteration-*") if re.fullmatch(r"iteration-\d+", path.name) and path.is_dir()]
    return sorted(named, key=_number)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("iteration-"))


def find_checkpoint(
    folder: Path, identity: dict[str, Any], allow_change: bool = False
) -> tuple[Path, Progress, list[str]] | None:
    """(folder, progress, differences of the configuration) of the newest checkpoint, or None if there is none.

    Raises ConfigError with the differences if it was made under another configuration and `allow_change` is not
    set, CheckpointError if it is damaged.
    """
    found = list_checkpoints(folder)
    newest = _folders(folder)[-1:]
    if newest and newest[0] not in found:  # they are written whole
        raise damaged(newest[0], FileNotFoundError("no state.json"))
    if not found:
        return None
    path = found[-1]
    try:
        state = read_object(path / "state.json")
        progress, before = _progress_of(path, state["progress"]), dict(state["identity"])
        hashes = dict(state.get("sha256", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None
    new = {key: identity.get(key) for key in LATER_KEYS if key not in before}
    differences = compare(before | new, identity)
    if differences and not allow_change:
        raise ConfigError(
            f"{folder.parent} was trained under another configuration: " + "; ".join(differences),
            f"restore that configuration, give the new one another `name`, delete {folder} to train anew, or go on all "
            "the same with --allow-config-change",
        )
    for name, stated in hashes.items():
        try:
            if sha256_file(path / name) != stated:
                raise ValueError(f"{name} is not what was written")
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None
    return path, progress, differences


def _progress_of(path: Path, stated: dict[str, Any]) -> Progress:
    """Raises TypeError or ValueError for what no checkpoint of this name says."""
    progress = Progress(**stated)
    for key, kind in {"iteration": int, "best": dict, "since": int, "unvalidated": dict}.items():
        if type(getattr(progress, key)) is not kind:
            raise TypeError(f"progress.{key} in state.json is {getattr(progress, key)!r}")
    if progress.iteration != _number(path):
        raise ValueError(f"progress.iteration in state.json is {progress.iteration}")
    return progress


def damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} cannot be loaded: {type(error).__name__}: {error}",
        f"delete {path}; training then goes on from the one before",
    )


def compare(old: Any, new: Any) -> list[str]:
    """The differences of two JSON values, one line each: `key: was old, now new`."""
    return [f"{'.'.join(key)}: was {was!r}, now {now!r}" for key, was, now in json_differences(old, new)]
