"""Environments that misbehave on command, for the tests of the pool. Importable in a worker process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from hgpo.envs.base import Observation
from hgpo.errors import DataError
from hgpo.tasks import Task


class Counter:
    """Adds numbers: the state depends on the task and on every action since the reset.

    Actions: a number is added; `die`, `hang`, `raise`, `exit`, `data` misbehave, always; `MISBEHAVIOUR-once PATH`
    only while there is no file at PATH, which it makes first; `end` ends the episode; `print` writes to the output.
    """

    made = 0

    def __init__(self, drift: bool = False):
        type(self).made += 1
        self.drift = drift
        self.history: list[str] | None = None

    def reset(self, task: Task) -> Observation:
        if task.id == "corrupt":
            raise DataError("the game file corrupt.tw-pddl is truncated", "fetch it again")
        if task.id.startswith("die-at-reset"):
            self._misbehave("die")
        self.task, self.history = task, []
        return self._observe()

    def step(self, action: str) -> Observation:
        assert self.history is not None
        name, _, path = action.partition("-once ")
        if path and not Path(path).exists():
            Path(path).touch()
            self._misbehave(name)
        elif not path:
            self._misbehave(action)
        self.history.append(name)
        return self._observe()

    def close(self) -> None:
        self.history = None

    def _observe(self) -> Observation:
        total = sum(int(entry) for entry in self.history if entry.isdigit())
        text = f"{self.task.id}: {total} after {self.history}" + (f" {os.getpid()}" if self.drift else "")
        done = self.history[-1:] == ["end"]
        return Observation(text, text, ("1", "2"), self.task.goal, float(done), 0.0, done, done)

    @staticmethod
    def _misbehave(name: str) -> None:
        if name == "die":
            os.kill(os.getpid(), 9)
        elif name == "hang":
            time.sleep(3600)
        elif name == "slow":
            time.sleep(0.2)
        elif name == "exit":
            sys.exit(3)
        elif name == "raise":
            raise RuntimeError("the engine broke")
        elif name == "data":
            raise DataError("the scene is missing")
        elif name == "print":
            print("noise from the engine")


def drifting() -> Counter:
    """Its observations differ from process to process, so no replay can be right."""
    return Counter(drift=True)


def unmakeable() -> Counter:
    raise DataError("no games at this path")


class Reporter(Counter):
    """Tells about its process instead: `modules`, `made` (environments made in it)."""

    def step(self, action: str) -> Observation:
        if action == "modules":
            answer = ",".join(sorted(sys.modules))
        elif action == "made":
            answer = str(type(self).made)
        elif action == "pid":
            answer = str(os.getpid())
        else:
            return super().step(action)
        return Observation(answer, "", (), "")


class Forewarned(Counter):
    """`expected` tells which tasks this process was told to expect, `closed` how many environments were closed in it;
    some task ids misbehave when expected."""

    told: list[str] = []
    closed = 0

    def expect(self, task: Task) -> None:
        self.told.append(task.id)
        self._misbehave(task.id.partition("-when-expected")[0])

    def step(self, action: str) -> Observation:
        if action in ("expected", "closed"):
            return Observation(",".join(self.told) if action == "expected" else str(self.closed), "", (), "")
        return super().step(action)

    def close(self) -> None:
        type(self).closed += 1
        super().close()


class DiesWhenUnpickled:
    """A factory that kills the worker that unpickles it."""

    def __call__(self) -> Counter:
        return Counter()

    def __reduce__(self):
        return (os._exit, (7,))


class Unpicklable:
    """A factory that raises in the worker that unpickles it."""

    def __call__(self) -> Counter:
        return Counter()

    def __reduce__(self):
        return (_raise, ())


def _raise():
    raise ImportError("no module named engine")
