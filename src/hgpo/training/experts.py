"""Expert episodes for the warm start, played in this process or in several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from hgpo.config import WarmStart
from hgpo.envs import expert_for, open_environment
from hgpo.envs.base import Environment
from hgpo.progress import progress
from hgpo.rollout.demonstrations import Demonstration, demonstrate
from hgpo.tasks import Task

SHARE = 8  # episodes that a process is given at once


class Stage:
    """The expert on an environment; what it plays does not depend on which process plays it."""

    def __init__(
        self, environment: str, folder: Path, tasks: Sequence[Task], max_steps: int, settings: WarmStart
    ) -> None:
        self.environment, self.folder, self.tasks = environment, folder, tasks
        self.max_steps, self.settings = max_steps, settings

    def play(self, numbers: Iterable[int], opened: Environment) -> Iterator[Demonstration]:
        return demonstrate(
            self.tasks,
            numbers,
            opened,
            lambda env: expert_for(self.environment, env),
            self.max_steps,
            self.settings.noise,
            self.settings.seed,
            self.settings.hesitation,
        )


def play_demonstrations(stage: Stage, count: int, workers: int) -> list[Demonstration]:
    """Episodes 0 to `count` - 1. workers: processes that play them; 0: this one."""
    with progress(total=count, desc="expert episodes", unit="episode") as bar:
        played: list[Demonstration] = []
        if not workers:
            opened = open_environment(stage.environment, stage.folder)
            try:
                for demonstration in stage.play(range(count), opened):
                    played.append(demonstration)
                    bar.update()
            finally:
                opened.close()
            return played
        shares = [range(first, min(first + SHARE, count)) for first in range(0, count, SHARE)]
        with ProcessPoolExecutor(
            min(workers, len(shares)), get_context("spawn"), initializer=_begin, initargs=(stage,)
        ) as processes:
            for demonstrations in processes.map(_play, shares):
                played += demonstrations
                bar.update(len(demonstrations))
        return played


_here: list[tuple[Stage, Environment]] = []  # of a process that plays


def _begin(stage: Stage) -> None:
    _here.append((stage, open_environment(stage.environment, stage.folder)))


def _play(numbers: Sequence[int]) -> list[Demonstration]:
    stage, opened = _here[0]
    return list(stage.play(numbers, opened))
