"""Preparing an environment for an experiment: its data, its panels, and a check that it can be played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from filelock import FileLock

from hgpo.config import Config
from hgpo.envs import environment_package, expert_for, open_environment
from hgpo.envs.panels import verify_panels, write_panels
from hgpo.errors import DataError, EnvironmentFailure
from hgpo.files import SUMS, changed_since, files_below, read_object, sha256_file, sha256_json, write_json, write_sums
from hgpo.tasks import Panel, Task

MARKER = "prepared.json"


def prepare(config: Config, environment: str) -> Path:
    """Writes the data and panels of `environment`, their hashes (SHA256SUMS), and last the marker: its path.

    Panels are built from sorted task ids and `data.panel_seed`. Waits for another process that prepares the same data.
    Raises DataError if a split has no task, or if a file that was prepared before has been damaged and is not made
    again.
    """
    folder = config.data_folder(environment)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        return _prepare(config, environment, folder)


def _prepare(config: Config, environment: str, folder: Path) -> Path:
    package = environment_package(environment)
    sums, marker = folder / SUMS, folder / MARKER
    again = _is_prepared(config, environment)
    if not again:  # hashes of other data, or of none that were complete
        marker.unlink(missing_ok=True)
        sums.unlink(missing_ok=True)
    package.prepare(getattr(config.data, environment), folder)
    panels = write_panels(folder, environment, config.data.panel_seed)
    if again and (damaged := changed_since(sums)):
        raise DataError(f"{damaged[0]} is not what was prepared", f"delete {folder} and run `hgpo prepare-data` anew")
    if not again:
        files = files_below(folder)
        write_sums(sums, [path for path in files if not any(p.startswith(".") for p in path.relative_to(folder).parts)])
    write_json(marker, _marker(config, environment, panels))
    return marker


def _is_prepared(config: Config, environment: str) -> bool:
    """Whether the folder holds complete data of these settings, with the hashes that belong to them."""
    folder = config.data_folder(environment)
    try:
        stated = _read_marker(folder / MARKER)
        whole = stated.get("sums") == sha256_file(folder / SUMS)
    except (DataError, OSError):
        return False
    return whole and stated.items() >= _settings(config, environment).items()


def verify_data(config: Config, environment: str) -> dict[str, Panel]:
    """Proves that data and panels are as they were prepared for `config`, every file; the panels by name.

    Raises DataError naming what differs.
    """
    folder = config.data_folder(environment)
    panels = verify_panels(folder, environment, full=True)
    stated, found = _read_marker(folder / MARKER), _marker(config, environment, panels)
    if stated.get("sums") != found["sums"]:
        raise DataError(
            f"{folder / SUMS} is not the one that was written with the data", "run `hgpo prepare-data` anew"
        )
    if stated != found:
        raise DataError(
            f"{folder / MARKER} is of other settings or panels than those of this configuration",
            "run `hgpo prepare-data`, or name another data.directory",
        )
    return panels


def _read_marker(marker: Path) -> dict[str, Any]:
    try:
        return read_object(marker)
    except (OSError, ValueError) as error:
        raise DataError(f"{marker} cannot be read: {error}", "delete it and run `hgpo prepare-data`") from None


def _marker(config: Config, environment: str, panels: dict[str, Panel]) -> dict[str, Any]:
    sums = config.data_folder(environment) / SUMS
    return _settings(config, environment) | {
        "panels": {name: {"hash": panel.hash, "tasks": len(panel)} for name, panel in panels.items()},
        "sums": sha256_file(sums) if sums.is_file() else "",
    }


def _settings(config: Config, environment: str) -> dict[str, Any]:
    """What the data of an environment are made from."""
    settings = getattr(config.data, environment).model_dump(mode="json")
    return {
        "environment": environment,
        "panel_seed": config.data.panel_seed,
        "settings_hash": sha256_json(settings),
    }


def check(config: Config, environment: str, out: Path) -> dict[str, Any]:
    """Proves the panels, and plays one task of each type of each split: the expert must win, an idle policy must lose.

    Writes `out`.

    Raises EnvironmentFailure naming the first task that fails.
    """
    folder = config.data_folder(environment)
    max_steps = config.environment(environment).max_steps
    played = []
    proved = verify_panels(folder, environment, full=True)
    panels = {split: proved[split] for split in environment_package(environment).SPLITS}
    opened = open_environment(environment, folder)
    can_be_won = getattr(environment_package(environment), "can_be_won", lambda opened, task: True)
    try:
        for split, panel in panels.items():
            first_of_type: dict[str, Task] = {}
            for task in panel.tasks:
                if task.type not in first_of_type and can_be_won(opened, task):
                    first_of_type[task.type] = task
            for kind, task in sorted(first_of_type.items())[:6]:
                won, steps = _expert_wins(opened, environment, task)
                idle = _idle_wins(opened, task, max_steps)
                played.append(
                    {
                        "split": split,
                        "type": kind,
                        "task": task.id,
                        "expert": "wins" if won else "loses",
                        "steps": steps,
                        "idle": "wins" if idle else "loses",
                    }
                )
                if not won or idle:
                    raise EnvironmentFailure(
                        f"{environment} task {task.id}: the expert {'wins' if won else 'loses'} and doing nothing "
                        f"{'wins' if idle else 'loses'}",
                        "prepare the data anew",
                    )
    finally:
        opened.close()
    record = {"environment": environment, "panels": {s: p.hash for s, p in panels.items()}, "played": played}
    write_json(out, record)
    return record


def _expert_wins(opened: Any, environment: str, task: Task, limit: int = 200) -> tuple[bool, int]:
    observation = opened.reset(task)
    expert = expert_for(environment, opened)
    expert.begin(task, observation)
    for step in range(1, limit + 1):
        observation = opened.step(expert.act(observation))
        if observation.done:
            return observation.won, step
    return False, limit


def _idle_wins(opened: Any, task: Task, max_steps: int) -> bool:
    observation = opened.reset(task)
    for _ in range(max_steps):
        observation = opened.step("look")
        if observation.done:
            return observation.won
    return False
