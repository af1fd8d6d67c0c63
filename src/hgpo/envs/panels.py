"""The panels of a prepared environment: written once, verified before every use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hgpo.envs import environment_package
from hgpo.errors import DataError
from hgpo.files import SUMS, changed_since
from hgpo.tasks import Panel, Task, build_panel, merge_panels, panel_path, save_panel
from hgpo.tasks import verify_panels as verify_against

# Panels beyond the splits themselves. The upstream agent code holds out goals 0-499 of WebShop and trains on the rest.
MERGED: dict[str, dict[str, tuple[str, ...]]] = {
    "webshop": {"agent_validation": ("test",), "agent_train": ("train", "eval")}
}


def write_panels(folder: str | Path, environment: str, seed: int) -> dict[str, Panel]:
    """Builds the panels of all splits from sorted task ids and `seed`, and writes them to `folder/panels`.

    Raises DataError if a split has no task, or tasks of two splits are equal.
    """
    package = environment_package(environment)
    panels: dict[str, Panel] = {}
    for split in package.SPLITS:
        tasks = package.list_tasks(Path(folder), split)
        if not tasks:
            raise DataError(
                f"{folder}: the split {split} has no task", f"check data.{environment} in the configuration"
            )
        panels[split] = build_panel(environment, split, tasks, seed)
    for name, parts in MERGED.get(environment, {}).items():
        panels[name] = merge_panels(name, [panels[part] for part in parts])
    for name, panel in panels.items():
        save_panel(panel, panel_path(folder, name))
    return panels


def verify_panels(folder: str | Path, environment: str, full: bool = False) -> dict[str, Panel]:
    """Proves the panels of a prepared folder and returns them by name; raises DataError (see `hgpo.tasks`).

    full: hashes the data anew, every file, instead of trusting the folder's index.
    """
    package = environment_package(environment)
    sums = Path(folder) / SUMS
    changed = changed_since(sums) if full and sums.exists() else []
    if changed:
        raise DataError(
            f"{changed[0]} {'is not what was prepared' if changed[0].exists() else 'is missing'}"
            + (f", and {len(changed) - 1} more files" if len(changed) > 1 else ""),
            f"restore the data, or delete {folder} and run `hgpo prepare-data` anew",
        )
    return verify_against(
        folder,
        environment,
        package.SPLITS,
        lambda split: package.list_tasks(Path(folder), split),
        MERGED.get(environment),
        _content_of(Path(folder), environment) if full else None,
    )


def verified_panel(folder: str | Path, environment: str, split: str) -> Panel:
    """The panel of a split, after all panels of the folder have been proved. Raises DataError."""
    panels = verify_panels(folder, environment)
    if split not in panels:
        raise DataError(f"{environment} has no panel {split!r}", f"use one of {', '.join(panels)}")
    return panels[split]


def _content_of(folder: Path, environment: str) -> Callable[[Task], str] | None:
    """How to hash a task's data anew; None where `list_tasks` does so itself."""
    hash_anew = getattr(environment_package(environment), "content_of", None)
    return None if hash_anew is None else lambda task: hash_anew(folder, task.id)
