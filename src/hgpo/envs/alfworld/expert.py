"""The hand-coded expert of the alfworld package: it explores as an agent must, it does not know where things are."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hgpo.envs.alfworld.environment import AlfworldEnvironment
from hgpo.envs.base import Observation
from hgpo.errors import EnvironmentFailure
from hgpo.streams import derive_seed
from hgpo.tasks import Task

MAX_STEPS = 200


@dataclass(frozen=True)
class _Fact:
    name: str
    names: tuple[str, ...]


class AlfworldExpert:
    """Chooses the next action for the task that `environment` plays; deterministic in (task, seed).

    The package's expert remembers what it did by the word "put", while the engine since 0.4 says "move": it is told of
    its moves in its own word, without which it takes a first object for the second and is lost in `pick_two` tasks.
    It draws from Python's global random generator: it gets a state of its own, the caller's is left as it was.
    """

    def __init__(self, environment: AlfworldEnvironment, seed: int = 0) -> None:
        self._environment = environment
        self._seed = seed

    def begin(self, task: Task, observation: Observation) -> None:
        from alfworld.agents.expert import HandCodedTWAgent

        parameters = self._environment.trajectory()
        self._agent = HandCodedTWAgent(max_steps=MAX_STEPS)
        self._agent.reset(str(self._environment.folder / "game.tw-pddl"))
        self._agent.observe(self._environment.raw_text)
        self._random = random.Random(derive_seed(self._seed, "environment", "expert", task.id))
        self._last = "look"
        self._task = f"{task.id} ({parameters.get('task_type')})"

    def act(self, observation: Observation) -> str:
        """The expert's action, always admissible.

        Raises EnvironmentFailure if it gives up: the task cannot be solved its way within 200 steps.
        """
        from alfworld.agents.expert import HandCodedAgentFailed, HandCodedAgentTimeout

        state = {
            "feedback": self._environment.raw_text,
            "facts": [_Fact(predicate, names) for predicate, names in self._environment.facts()],
            "admissible_commands": list(observation.admissible),
        }
        before = random.getstate()
        random.setstate(self._random.getstate())
        try:
            action = self._agent.act(state, 0, observation.won, self._last)
        except (HandCodedAgentFailed, HandCodedAgentTimeout, IndexError, KeyError) as error:
            raise EnvironmentFailure(f"the hand-coded expert gives up on {self._task}: {error!r}") from error
        finally:
            self._random.setstate(random.getstate())
            random.setstate(before)
        if action not in observation.admissible:
            action = "look"
        self._last = f"put{action.removeprefix('move')}" if action.startswith("move ") else action
        return action

    def idle(self, observation: Observation) -> tuple[str, ...]:
        return tuple(action for action in ("look",) if action in observation.admissible)
