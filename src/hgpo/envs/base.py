"""What an environment is to the rest of the project.

To add one: write a module under `hgpo/envs/` with a class that fulfils `Environment`, a `prepare` function that
writes data and panels, and an expert; then name it in `hgpo/envs/__init__.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hgpo.tasks import Task


@dataclass(frozen=True)
class Observation:
    """What an environment answers to `reset` and `step`.

    text: the observation as the agent reads it; for `reset` without the goal sentence.
    state: the anchor text by which steps are compared ("same state").
    admissible: the actions that do something here, in the environment's own order.
    goal: the task in words.
    reward: the environment's reward of this step before scaling: 1.0 when the task is won, else 0.0.
    score: the task score so far in [0, 1] (ALFWorld: won or not; WebShop: the purchase's score).
    done: the episode has ended; no further `step` is allowed.
    won: the task is solved.
    """

    text: str
    state: str
    admissible: tuple[str, ...]
    goal: str
    reward: float = 0.0
    score: float = 0.0
    done: bool = False
    won: bool = False


class Environment(Protocol):
    """One running task. `reset` may be called any number of times, with any task of the environment.

    Raises DataError for a task whose data are missing or corrupt, EnvironmentFailure when the engine breaks.
    Where `reset` takes long, an environment may also have a method `expect(task)`, called in idle time before some
    environment of the same pool is reset to the task. It may raise anything: `reset` is to say what is wrong.
    """

    def reset(self, task: Task) -> Observation: ...

    def step(self, action: str) -> Observation: ...

    def close(self) -> None: ...


class Expert(Protocol):
    """A scripted policy for demonstrations. It may look at the environment's inner state, an agent never does."""

    def begin(self, task: Task, observation: Observation) -> None: ...

    def act(self, observation: Observation) -> str: ...

    def idle(self, observation: Observation) -> tuple[str, ...]:
        """Actions that can be done here and neither help nor hurt: what a hesitant demonstrator does in between."""
        ...
