"""What lies beside a checkpoint from when it was made: `finished.json` of a run, `checkpoint.json` of a warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hgpo.errors import CheckpointError
from hgpo.files import read_object


def read_record(file: Path) -> dict[str, Any] | None:
    """The record, None if there is none. Raises CheckpointError if it cannot be read."""
    if not file.is_file():
        return None
    try:
        return read_object(file)
    except ValueError as error:
        raise unreadable(file, error) from None


def unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{file} cannot be read: {type(error).__name__}: {error}", "restore it, or make the checkpoint again"
    )


def check_unchanged(checkpoint: Path, stated: str | None, found: str) -> None:
    """Raises CheckpointError if the hash that a record states (None: it states none) is not the one found."""
    if stated not in (None, found):
        raise CheckpointError(
            f"{checkpoint} was changed after it was made: its hash is {found[:12]}, its record says {str(stated)[:12]}",
            "restore it from where it is pinned, or make it again",
        )
