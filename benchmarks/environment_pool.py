"""Measures the environment pool on prepared data: resets, steps, memory, and the loss of a worker amid episodes.

    python benchmarks/environment_pool.py alfworld DATA --episodes 256 --workers 2 --steps 10

Plays the episodes of the training panel, `--group` of each task, with actions drawn from the admissible ones. Memory is
the proportional set size (shared pages counted once) of all workers together. `--rounds` begins episodes of other tasks
again and again, as training does, `--ahead` seconds after the workers were told which, and plays the last ones.
HGPO_CACHE names the folder of compiled games, which matter for the first reset of a task.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from hgpo.envs import environment_factory
from hgpo.envs.base import Observation
from hgpo.envs.panels import verified_panel
from hgpo.envs.pool import Pool
from hgpo.streams import derive_seed
from hgpo.tasks import draw_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=["alfworld", "webshop"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--group", type=int, default=8, help="episodes of each task")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ahead", type=float, default=0.0, help="tell the workers so many seconds before")
    parser.add_argument("--kill", action="store_true", help="kill a worker half-way, and replay its episodes")
    options = parser.parse_args()

    panel = verified_panel(options.data, options.environment, "train")
    factory = environment_factory(options.environment, options.data)
    with Pool(factory, options.workers, group_size=options.group) as pool:
        for number in range(options.rounds):
            tasks = draw_tasks(panel, 0, number, -(-options.episodes // options.group))
            begins = [tasks[episode // options.group] for episode in range(options.episodes)]
            if options.ahead:
                pool.expect(begins)
                time.sleep(options.ahead)
            start = time.perf_counter()
            for episode, task in enumerate(begins):
                pool.submit(episode, task)
            observations = {}
            collect(pool, observations)
            took = time.perf_counter() - start
            print(f"{len(begins)} resets of {len(tasks)} tasks in {took:.2f} s ({memory(pool):.0f} MiB in workers)")
        start, steps = time.perf_counter(), 0
        for step in range(options.steps):
            if options.kill and step == options.steps // 2:
                os.kill(pool.worker_ids[0], signal.SIGKILL)
            running = [episode for episode, observation in observations.items() if not observation.done]
            for episode in running:
                pool.submit(episode, choose(episode, step, observations[episode]))
            steps += len(running)
            collect(pool, observations)
        took = time.perf_counter() - start
        print(f"{steps} steps in {took:.1f} s: {steps / took:.0f} steps/s ({memory(pool):.0f} MiB in workers)")
        print(pool.statistics)


def collect(pool: Pool, observations: dict[int, Observation]) -> None:
    while pool.outstanding:
        for episode, answer in pool.ready():
            if not isinstance(answer, Observation):
                raise SystemExit(str(answer))
            observations[episode] = answer


def choose(episode: int, step: int, observation: Observation) -> str:
    action = observation.admissible[derive_seed(0, "environment", episode, step) % len(observation.admissible)]
    return action.replace("<your query>", observation.goal)


def memory(pool: Pool) -> float:
    total = 0
    for pid in pool.worker_ids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


if __name__ == "__main__":
    main()
