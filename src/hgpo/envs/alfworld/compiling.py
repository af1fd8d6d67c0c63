"""Compiles all games of a prepared folder beforehand, in several processes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from hgpo.envs.alfworld.compiled import load_game, read_game
from hgpo.envs.alfworld.data import list_tasks
from hgpo.envs.alfworld.sources import GAME, SPLITS
from hgpo.progress import progress
from hgpo.tasks import Task


def compile_all(data: Path, workers: int) -> int:
    """Puts every game of the splits into the cache of compiled games; returns how many there are."""
    tasks = [task for split in SPLITS for task in list_tasks(data, split)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as processes:
        done = processes.map(partial(_compile, Path(data)), tasks, chunksize=8)
        for _ in progress(done, total=len(tasks), desc="games", unit="game"):
            pass
    return len(tasks)


def _compile(data: Path, task: Task) -> None:
    path = data / "games" / task.id / GAME
    load_game(read_game(path), path, task.content)
