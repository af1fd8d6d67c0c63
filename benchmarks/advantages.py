"""Speed and memory of `hgpo.advantages` against a version in plain Python.

    OMP_NUM_THREADS=1 python benchmarks/advantages.py [--small] [--json FILE]

`plain` does it the way the field's code does: columns in object arrays, dictionaries keyed by tuples of state strings,
one NumPy mean and standard deviation per group, one scan over all rows per row for the returns. `tensor` is the same
with the returns in a torch tensor, where a trainer has them, so that every number taken from it is a tensor. `lean` has
no such scans: linear, nothing but lists and dictionaries. All of them compute the same numbers, which is checked.
State strings are new objects for every run, so their hashing is part of the time. Times are processor time of one
thread, so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import time
from collections import defaultdict

import numpy as np

from hgpo.advantages import compute, diagnose
from hgpo.versions import hardware

GAMMA, PENALTY, EPSILON = 0.95, 0.1, 1e-6


def batch(tasks: int, rollouts: int, steps: int, seed: int = 0) -> dict:
    """Trajectories that wander over 40 states a task, with observations of about 300 characters."""
    draw = np.random.Generator(np.random.PCG64(seed))
    n = tasks * rollouts * steps
    task = [f"task-{t}" for t in range(tasks) for _ in range(rollouts * steps)]
    moves = draw.choice([-1, 0, 1], size=(tasks * rollouts, steps), p=[0.1, 0.2, 0.7])
    place = np.clip(np.cumsum(moves, axis=1), 0, 39).ravel()
    reward = np.zeros(n)
    reward[steps - 1 :: steps] = 10.0 * (draw.random(tasks * rollouts) < 0.5)
    view = "You arrive at a shelf and look around. On it, you see a book, a candle and a vase. " * 3
    return {
        "task": task,
        "trajectory": [f"rollout-{t}-{r}" for t in range(tasks) for r in range(rollouts) for _ in range(steps)],
        "state": [f"{view}{name} place {p}" for name, p in zip(task, place.tolist(), strict=True)],
        "reward": reward,
        "invalid": draw.random(n) < 0.1,
    }


def fresh(columns: dict) -> dict:
    """The same columns with state strings that nobody has hashed yet."""
    return columns | {"state": [(text + " ")[:-1] for text in columns["state"]]}


def plain(columns: dict, history: int, hold=np.asarray) -> np.ndarray:
    """HGPO with upstream's weights in the manner of the field's code; `hold` is what keeps the returns."""
    task, trajectory, state = (np.array(columns[name], dtype=object) for name in ("task", "trajectory", "state"))
    by_trajectory = {}
    for name in np.unique(trajectory):
        rows = np.where(trajectory == name)[0]
        running, values = 0.0, np.zeros(len(rows))
        for t in reversed(range(len(rows))):
            running = values[t] = columns["reward"][rows[t]] + GAMMA * running
        by_trajectory[name] = values
    returns = np.zeros(len(state))
    for row, name in enumerate(trajectory):
        rows = np.where(trajectory == name)[0]
        returns[row] = by_trajectory[name][np.where(rows == row)[0][0]]
    returns = hold(returns - PENALTY * columns["invalid"])
    advantages = np.zeros(len(state))
    for name in np.unique(task):
        members = np.where(task == name)[0]
        groups = defaultdict(list)
        for one in np.unique(trajectory[members]):
            rows = members[trajectory[members] == one]
            for t, row in enumerate(rows):
                for k in range(min(history, t) + 1):
                    groups[tuple(state[rows[t - k : t + 1]])].append(row)
        levels = defaultdict(list)
        for context, rows in groups.items():
            if len(rows) > 1:
                values = [returns[row] for row in rows]
                scores = (values - np.mean(values)) / (np.std(values) + EPSILON)
                for row, score in zip(rows, scores, strict=True):
                    levels[row].append((len(context) + 1, score))
        for row, found in levels.items():
            kept = [(weight, score) for weight, score in found if abs(score) > 1e-9]
            advantages[row] = sum(w * a for w, a in kept) / (sum(w for w, _ in kept) + EPSILON)
    return advantages


def tensor(columns: dict, history: int) -> np.ndarray:
    """`plain` with the returns in a tensor."""
    import torch

    return plain(columns, history, torch.tensor)


def lean(columns: dict, history: int) -> list[float]:
    """The same, linear in the number of steps: lists and dictionaries only."""
    rows_of = defaultdict(list)
    for row, key in enumerate(zip(columns["task"], columns["trajectory"], strict=True)):
        rows_of[key].append(row)
    reward, invalid, state = columns["reward"].tolist(), columns["invalid"].tolist(), columns["state"]
    returns, groups = [0.0] * len(state), defaultdict(list)
    for (task, _), rows in rows_of.items():
        running = 0.0
        for row in reversed(rows):
            running = reward[row] + GAMMA * running
            returns[row] = running - PENALTY * invalid[row]
        states = [state[row] for row in rows]
        for t, row in enumerate(rows):
            for k in range(min(history, t) + 1):
                groups[task, *states[t - k : t + 1]].append(row)
    total, weight = [0.0] * len(state), [0.0] * len(state)
    for context, rows in groups.items():
        if len(rows) > 1:
            values = [returns[row] for row in rows]
            mean = sum(values) / len(values)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) + EPSILON
            for row, value in zip(rows, values, strict=True):
                if abs(value - mean) > 1e-9 * deviation:
                    total[row] += len(context) * (value - mean) / deviation
                    weight[row] += len(context)
    return [t / (w + EPSILON) for t, w in zip(total, weight, strict=True)]


def ours(columns: dict, history: int) -> np.ndarray:
    return compute("hgpo", columns, history=history, weights="upstream", gamma=GAMMA, invalid_penalty=PENALTY)


def timed(function, columns: dict, repeats: int, *arguments) -> float:
    """Best of `repeats`, in seconds."""
    best = math.inf
    for _ in range(repeats):
        again = fresh(columns)
        start = time.process_time()
        function(again, *arguments)
        best = min(best, time.process_time() - start)
    return best


def against_plain(history: int) -> dict:
    columns = batch(16, 8, 28)
    expected = plain(columns, history)
    for function in (tensor, lean, ours):
        np.testing.assert_allclose(function(columns, history), expected, atol=1e-6)
    times = {
        "tensor": timed(tensor, columns, 2, history),
        "plain": timed(plain, columns, 2, history),
        "lean": timed(lean, columns, 5, history),
        "ours": timed(ours, columns, 30, history),
        "diagnostics": timed(lambda c, k: diagnose(c, history=k), columns, 10, history),
    }
    return {"steps": len(columns["state"]), "history": history, **times}


def scaling(tasks: int, history: int) -> dict:
    """Run in a process of its own, so that the peak memory is that of this size."""
    columns = batch(tasks, 8, 50)
    before = peak_memory()
    start = time.process_time()
    ours(columns, history)
    seconds = time.process_time() - start
    sizes = {"input_mb": before, "peak_mb": peak_memory()}
    return {"steps": len(columns["state"]), "history": history, "seconds": seconds, **sizes}


def peak_memory() -> float:
    """Largest resident size of this process so far, in MB."""
    with open("/proc/self/status", encoding="utf-8") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="stop the scaling table at 100,000 steps")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    print(f"{hardware()['processor']}; Python {platform.python_version()}, NumPy {np.__version__}; one thread")
    print("\n| steps | K | tensor | plain | lean | ours | diagnostics | tensor / ours | plain / ours | lean / ours |")
    print("|" + "---:|" * 10)
    ratios = [against_plain(history) for history in (2, 4)]
    for r in ratios:
        shown = [f"{1e3 * r[name]:.2f} ms" for name in ("tensor", "plain", "lean", "ours", "diagnostics")]
        shown += [f"{r[name] / r['ours']:.0f}" for name in ("tensor", "plain", "lean")]
        print(f"| {r['steps']:,} | {r['history']} | " + " | ".join(shown) + " |")
    print("\n| steps | K | time | per step and level | memory of the input | peak |\n|" + "---:|" * 6)
    sizes = [(25, 4), (250, 4), (2500, 0), (2500, 2), (2500, 4), (2500, 8)]
    table = []
    for tasks, history in sizes[: 2 if arguments.small else None]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            table.append(r := pool.apply(scaling, (tasks, history)))
        print(f"| {r['steps']:,} | {history} | {r['seconds']:.3f} s | "
              f"{1e9 * r['seconds'] / r['steps'] / (history + 1):.0f} ns | "
              f"{r['input_mb']:.0f} MB | {r['peak_mb']:.0f} MB |")  # fmt: skip
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as stream:
            json.dump({"cpu": hardware()["processor"], "ratios": ratios, "scaling": table}, stream, indent=2)


if __name__ == "__main__":
    main()
