"""What an iteration is measured by, and where the measurements go."""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hgpo.config.machinery import Tracking
from hgpo.errors import ConfigError
from hgpo.files import atomic_path, write_text
from hgpo.rollout.episode import Episode


def summarise(episodes: list[Episode]) -> dict[str, float]:
    """Means over episodes and steps, as they go into metrics.jsonl."""
    steps = [step for episode in episodes for step in episode.steps]
    count = max(len(steps), 1)
    return {
        "episodes": len(episodes),
        "failed": sum(bool(e.failed) for e in episodes),
        "success": float(np.mean([e.won for e in episodes])),
        "score": float(np.mean([e.score for e in episodes])),
        "reward": float(np.mean([sum(s.reward for s in e.steps) for e in episodes])),
        "steps": float(np.mean([len(e.steps) for e in episodes])),
        "invalid_share": sum(s.invalid for s in steps) / count,
        "truncated_share": sum(s.truncated > 0 for s in steps) / count,
        "prompt_tokens": sum(len(s.prompt_ids) for s in steps) / count,
        "response_tokens": sum(len(s.response_ids) for s in steps) / count,
    }


def save_rollouts(path: Path, episodes: list[Episode], values: np.ndarray) -> None:
    """The steps of an iteration with their advantages, as Parquet for the viewer and `hgpo advantages`."""
    records = [record for episode in episodes for record in episode.step_records()]
    outcomes = [(episode.won, episode.task_type, episode.goal) for episode in episodes for _ in episode.steps]
    for record, value, (won, task_type, goal) in zip(records, values, outcomes, strict=True):
        record |= {"advantage": float(value), "won": won, "task_type": task_type, "goal": goal}
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(records), temporary, compression="zstd")


class Clock:
    """Wall time of the phases of one iteration, in seconds."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - begin

    def times(self, tokens: int) -> dict[str, float]:
        """Seconds of each phase, tokens (prompts and responses of the rollouts) per second, and memory in GiB."""
        total = time.monotonic() - self._start
        memory = {"memory/host_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
        if torch.cuda.is_available():
            memory["memory/gpu_gb"] = torch.cuda.max_memory_allocated() / 2**30
        return {f"time/{phase}": seconds for phase, seconds in self._phases.items()} | {
            "time/total": total,
            "tokens_per_s": tokens / total,
            **memory,
        }


def with_times(line: dict[str, Any], times: dict[str, float]) -> dict[str, Any]:
    """A line with the times of a Clock, added to those that it has from before an interruption."""
    if "time/total" not in line:
        return line | times
    tokens = sum(part["tokens_per_s"] * part["time/total"] for part in (line, times))
    spent = {key: seconds + line.get(key, 0.0) for key, seconds in times.items() if key.startswith("time/")}
    return line | times | spent | {"tokens_per_s": tokens / spent["time/total"]}


class MetricsLog:
    """`metrics.jsonl`, TensorBoard and W&B. On resume, lines of iterations that are written again are dropped.

    lost: how many lines of the iterations before the first are not there.
    identity: what the run is; it becomes W&B's config, and holds no key.
    """

    def __init__(
        self,
        folder: Path,
        first_iteration: int,
        tracking: Tracking | None = None,
        identity: dict[str, Any] | None = None,
    ) -> None:
        tracking = tracking or Tracking()
        self._path = folder / "metrics.jsonl"
        kept = _lines_before(first_iteration, self._path) if self._path.is_file() else []
        self.lost = first_iteration - len(kept)
        write_text(self._path, "".join(line + "\n" for line in kept))
        self._board = self._wandb = None
        if tracking.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_iteration)
        if tracking.wandb != "off":
            self._wandb = _start_wandb(folder, tracking, identity or {})

    def write(self, line: dict[str, Any]) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line, sort_keys=True) + "\n")
        except OSError as error:  # a full disk does not say of which file
            error.filename = error.filename or str(self._path)
            raise
        numbers = {k: v for k, v in line.items() if isinstance(v, int | float) and k != "iteration"}
        if self._board:
            for key, value in numbers.items():
                self._board.add_scalar(key, value, line["iteration"])
        if self._wandb:
            self._wandb.log(numbers, step=line["iteration"])

    def close(self) -> None:
        if self._board:
            self._board.close()
        if self._wandb:
            self._wandb.finish()


def _lines_before(first_iteration: int, path: Path) -> list[str]:
    """The line of each iteration before the first, as far as they are whole: the last may have been cut off."""
    kept: dict[int, str] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            iteration = json.loads(line)["iteration"]
        except (ValueError, KeyError, TypeError):
            continue
        if type(iteration) is int and 0 <= iteration < first_iteration:
            kept[iteration] = line.decode()
    return list(kept.values())


def _start_wandb(folder: Path, tracking: Tracking, identity: dict[str, Any]) -> Any:
    try:
        import wandb
    except ImportError:
        raise ConfigError(f"tracking.wandb: {tracking.wandb} needs the package wandb", "pip install wandb") from None
    return wandb.init(
        project=tracking.wandb_project,
        dir=str(folder),
        mode=tracking.wandb,
        id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
        name="/".join(str(value) for value in identity.get("run", {}).values()),
        resume="allow",
        config=identity,
    )
