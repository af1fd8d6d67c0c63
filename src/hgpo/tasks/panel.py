"""A panel is a file: an ordered list of tasks, each with the hash of its content.

It is built once, by `prepare_data`, from sorted task ids and one seed. Training draws from it by a stream that
depends on (seed, iteration) alone; evaluation takes each of its tasks exactly once per seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hgpo.errors import ConfigError, DataError
from hgpo.files import sha256_json, write_json
from hgpo.streams import stream


@dataclass(frozen=True)
class Task:
    """One task of an environment.

    id: unique within the environment and independent of where the data lie, e.g.
        `valid_seen/look_at_obj_in_light-CD-None-DeskLamp-302/trial_T20190907_154618_526741` or `goal-00376`.
    type: the field's task type, e.g. `pick_and_place_simple`; for WebShop the product category.
    content: sha256 of what the task is (the game file, or the goal with its product), hex.
    goal: the instruction in words, where known without loading the task.
    """

    id: str
    type: str
    content: str
    goal: str = ""


@dataclass(frozen=True)
class Panel:
    """The ordered tasks of one split of one environment."""

    environment: str
    split: str
    seed: int
    tasks: tuple[Task, ...]
    protocol: str = "canonical"
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """sha256 over environment, split, seed, protocol and the ordered (id, content) pairs."""
        return sha256_json(
            [self.environment, self.split, self.seed, self.protocol, [[t.id, t.content] for t in self.tasks]]
        )

    def __len__(self) -> int:
        return len(self.tasks)


def build_panel(environment: str, split: str, tasks: Iterable[Task], seed: int, limit: int | None = None) -> Panel:
    """Sorts by id, shuffles by the stream (seed, "panel", environment, split) and keeps the first `limit` tasks."""
    ordered = sorted(tasks, key=lambda task: task.id)
    ids = [task.id for task in ordered]
    if len(set(ids)) != len(ids):
        twice = next(a for a, b in zip(ids, ids[1:], strict=False) if a == b)
        raise DataError(f"panel {environment}/{split}: task id {twice!r} occurs twice", "remove the duplicate task")
    order = stream(seed, "panel", environment, split).permutation(len(ordered))
    chosen = tuple(ordered[i] for i in order)
    return Panel(environment, split, seed, chosen if limit is None else chosen[:limit])


def merge_panels(split: str, panels: Iterable[Panel]) -> Panel:
    """One panel of all tasks of several splits, ordered as any other: by the first panel's seed."""
    parts = list(panels)
    tasks = [task for part in parts for task in part.tasks]
    return build_panel(parts[0].environment, split, tasks, parts[0].seed)


def save_panel(panel: Panel, path: str | Path) -> None:
    body = asdict(panel) | {"hash": panel.hash}
    write_json(path, body)


def load_panel(path: str | Path) -> Panel:
    """Reads a panel file and checks its own hash.

    Raises DataError if the file is missing, unreadable, empty, or was changed after it was written.
    """
    path = Path(path)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        stated = body.pop("hash")
        panel = Panel(**(body | {"tasks": tuple(Task(**task) for task in body["tasks"])}))
    except FileNotFoundError:
        raise DataError(f"no panel at {path}", "run `hgpo prepare-data` first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"panel {path} cannot be read: {error}", "delete it and run `hgpo prepare-data`") from None
    if panel.hash != stated:
        raise DataError(
            f"panel {path} was changed after it was written: its tasks hash to {panel.hash[:12]}, "
            f"the file says {stated[:12]}",
            "delete it and run `hgpo prepare-data`",
        )
    if not panel.tasks:
        raise DataError(f"panel {path} holds no task", "check the data folder and run `hgpo prepare-data`")
    return panel


def hold_out(panel: Panel, count: int) -> tuple[Panel, Panel | None]:
    """The panel to train on, and its last `count` tasks (at most a fifth) for validation while training, if any."""
    count = min(count, len(panel) // 5)
    if not count:
        return panel, None
    held_out = replace(panel, split=f"{panel.split}-validation", tasks=panel.tasks[-count:])
    return replace(panel, tasks=panel.tasks[:-count]), held_out


def draw_tasks(panel: Panel, seed: int, iteration: int, count: int) -> list[Task]:
    """The tasks of one training iteration, each another one: a function of (panel, seed, iteration, count) alone.

    Passes over the panel in shuffled epochs, so that every task comes once before any comes again. An iteration that
    begins in one epoch and ends in the next takes no task twice: those it has come a little later in the next epoch.

    Raises ConfigError if the panel has fewer tasks than that.
    """
    size = len(panel.tasks)
    if count > size:
        raise ConfigError(
            f"an iteration needs {count} tasks, but the panel {panel.environment}/{panel.split} has {size} to train on",
            f"set training.tasks_per_iteration to {size} or less",
        )
    first, offset = divmod(iteration * count, size)
    drawn: list[int] = []
    order: list[int] = []
    for epoch in range(first + 2):
        begun = -epoch * size % count  # so many are drawn from this epoch for an iteration that began in the last one
        last = order[size - (count - begun) :] if begun else []
        order = _shuffled(panel, seed, epoch, begun, set(last))
        if epoch == first:
            drawn = order[offset : offset + count]
    return [panel.tasks[i] for i in drawn + order[: count - len(drawn)]]


def _shuffled(panel: Panel, seed: int, epoch: int, begun: int, had: set[int]) -> list[int]:
    """The order of an epoch, as indices; its first `begun` are not among `had`, which come right after them."""
    order = stream(seed, "tasks", panel.environment, panel.split, epoch).permutation(len(panel.tasks)).tolist()
    head = [i for i in order if i not in had][:begun]
    taken = set(head)
    return head + [i for i in order if i not in taken]
