"""A made-up results folder, written through the real panels, episode store and file layout.

Success, lengths and metrics are drawn from curves that look like real training, so that tables and figures made from
them look like real ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hgpo import advantages
from hgpo.config import Config, Run, load_config, plan_runs
from hgpo.evaluation.baselines import Trials
from hgpo.evaluation.store import EpisodeStore
from hgpo.files import sha256_json, write_json
from hgpo.reporting.collect import warm_start_runs
from hgpo.rollout.episode import Episode, Step, step_columns
from hgpo.rollout.policy import policy_hash
from hgpo.streams import stream
from hgpo.tasks import Panel, Task, build_panel, load_panel, save_panel
from hgpo.training.loop import save_rollouts

TYPES = {
    "alfworld": ["pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep"]
    + ["pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_two_obj_and_place"],
    "webshop": ["beauty", "electronics", "fashion", "garden", "grocery"],
}
SKILL = {"warm_start": 0.35, "grpo": 0.55, "gigpo": 0.66, "hgpo": 0.72, "hgpo_flat": 0.68, "random": 0.05}
SKILL |= {"reflexion": 0.4}


def make_config(folder: Path, **changes: Any) -> Path:
    """Writes a configuration below `folder` and returns its path. `changes` replace top-level keys."""
    body = {
        "name": "fake",
        "results": str(folder / "results"),
        "data": {"directory": str(folder / "data")},
        "models": {"tiny": {"source": "embedded"}},
        "methods": {"hgpo_flat": {"estimator": "hgpo", "options": {"alpha": 0.0}}},
        "matrix": {
            "models": ["tiny"],
            "environments": ["alfworld", "webshop"],
            "methods": ["hgpo", "gigpo", "grpo", "hgpo_flat"],
            "history": [2, 4],
            "training_seeds": [0],
        },
        "training": {"iterations": 20},
        "environments": {name: {"agent": {"chat": False}} for name in ("alfworld", "webshop")},
    }
    path = folder / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(body | changes), encoding="utf-8")
    return path


def make_results(folder: Path, tasks: int = 18, length: int = 3, **changes: Any) -> Config:
    """A complete results folder for `make_config(folder, **changes)`, `tasks` tasks to a split."""
    config = load_config(make_config(folder, **changes))
    for environment in config.matrix.environments:
        make_panels(config, environment, tasks)
    for run in [*plan_runs(config), *warm_start_runs(config)]:
        make_training(config, run)
        for split in config.environment(run.environment).evaluation_splits:
            for seed in config.evaluation.seeds:
                make_evaluation(config, run, split, seed, length)
    return config


def make_panels(config: Config, environment: str, tasks: int) -> None:
    protocol = config.environment(environment)
    for split in [protocol.train_split, *protocol.evaluation_splits.values()]:
        kinds = TYPES[environment]
        made = [
            Task(f"{split}/task-{i:04d}", kinds[i % len(kinds)], sha256_json([environment, split, i]), f"goal {i}")
            for i in range(tasks)
        ]
        save_panel(
            build_panel(environment, split, made, 0), config.data_folder(environment) / "panels" / f"{split}.json"
        )


def checkpoint_hash(run: Run) -> str:
    return sha256_json(["checkpoint", str(run)])


def make_training(config: Config, run: Run) -> None:
    if run.method == "warm_start":
        write_json(run.start_folder(config) / "checkpoint.json", {"hash": checkpoint_hash(run)})
        return
    folder = run.folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [metrics_row(config, run, i) for i in range(config.training.iterations)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    estimator, options = config.estimator_for(run.method, run.environment, run.history)
    finished = {
        "run": asdict(run),
        "estimator": estimator,
        "options": options,
        "iterations": config.training.iterations,
        "checkpoint": "final",
        "checkpoint_hash": checkpoint_hash(run),
        "start_hash": sha256_json("start"),
        "panel_hash": sha256_json("panel"),
        "config_hash": sha256_json("config"),
        "wall_s": 100.0,
        "commit": "0" * 40,
        "packages": {"python": "3.11"},
    }
    write_json(folder / "finished.json", finished)


def make_checkpoint(config: Config, run: Run) -> None:
    """Gives a finished run a checkpoint folder, and evaluates the run anew with it."""
    folder = run.folder(config) / "final"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights of " + str(run).encode())
    digest = policy_hash(folder)
    record = run.folder(config) / "finished.json"
    write_json(record, json.loads(record.read_text()) | {"checkpoint_hash": digest})
    for split in config.environment(run.environment).evaluation_splits:
        for seed in config.evaluation.seeds:
            run.episodes(config, split, seed).unlink()
            make_evaluation(config, run, split, seed, checkpoint=digest)


def make_rollouts(config: Config, run: Run, iteration: int, tasks: int = 2, rollouts: int = 4, steps: int = 6) -> Path:
    """Keeps the rollouts of one iteration as training does; a few places, so that states come again."""
    episodes = []
    for number in range(tasks):
        for rollout in range(rollouts):
            draw = stream(run.seed, "tests", "rollout", number, rollout, iteration)
            kind = TYPES[run.environment][number % 5]
            episode = Episode(f"train/task-{number:04d}", kind, rollout, f"put apple {number} in the fridge")
            places = ["cabinet 1", "drawer 2", "fridge 1"]
            episode.steps = [make_step(places[int(draw.integers(3)) if t else 0], t) for t in range(steps)]
            episode.won = bool(draw.random() < 0.5)
            episode.steps[-1].reward = 10.0 if episode.won else 0.0
            episodes.append(episode)
    estimator, options = config.estimator_for(run.method, run.environment, run.history)
    path = run.folder(config) / "rollouts" / f"iteration-{iteration:06d}.parquet"
    save_rollouts(path, episodes, advantages.compute(estimator, step_columns(episodes), **options))
    return path


def metrics_row(config: Config, run: Run, iteration: int) -> dict[str, Any]:
    draw = stream(run.seed, "tests", str(run), iteration)
    part = 1 - np.exp(-3 * (iteration + 1) / config.training.iterations)
    success = float(np.clip(0.35 + (SKILL[run.method] - 0.35) * part + draw.normal(0, 0.04), 0, 1))
    times = {
        "rollout": 60,
        "old_log_probs": 12,
        "reference_log_probs": 11,
        "update": 30,
        "validation": 5,
        "checkpoint": 1,
    }
    row: dict[str, Any] = {"iteration": iteration, "episodes": 32, "success": success, "score": success, "steps": 18.0}
    row |= {"reward": 10 * success, "invalid_share": 0.2 * (1 - part), "truncated_share": 0.0}
    row |= {"loss/policy": -0.01, "loss/kl": 0.002 * part, "loss/entropy": 1.0 - 0.5 * part, "gradient_norm": 0.5}
    row |= {f"time/{k}": v * (1 + 0.1 * draw.random()) for k, v in times.items()}
    row |= {
        "time/advantages": {"hgpo": 0.3, "hgpo_flat": 0.3, "gigpo": 0.2, "grpo": 0.02}[run.method] * (1 + draw.random())
    }
    row["time/total"] = sum(v for k, v in row.items() if k.startswith("time/"))
    row |= {"tokens_per_s": 900.0, "memory/host_gb": 2.5}
    for level in range(run.history + 1):
        share = 0.85 * 0.7**level
        row[f"groups/groups/{level}"] = 200.0 * share
        row[f"groups/shared_share/{level}"] = share
        row[f"groups/zero_share/{level}"] = 1 - 0.7 * share
        row[f"groups/mean_size/{level}"] = 1 + 7 * share
    row["groups/oracle_share"] = 0.15 + 0.2 * part
    for estimator, bias in (
        ("gigpo", 0.5),
        ("hgpo_paper", 0.3),
        ("hgpo_upstream", 0.28),
        ("grpo", 0.8),
        ("level_0", 0.4),
    ):
        row[f"groups/bias/{estimator}"] = bias * (1 - 0.3 * part) + 0.02 * draw.normal()
        row[f"groups/variance/{estimator}"] = 0.3 * bias + 0.01 * draw.normal()
    if iteration % 5 == 4:
        row |= {"validation/success": success - 0.03, "validation/score": success}
    return row


def panel_of(config: Config, run: Run, split: str) -> Panel:
    panels = config.data_folder(run.environment) / "panels"
    return load_panel(panels / f"{config.environment(run.environment).evaluation_splits[split]}.json")


def metadata(config: Config, run: Run, split: str, seed: int) -> dict[str, Any]:
    panel = panel_of(config, run, split)
    return {
        "run": asdict(run),
        "split": split,
        "panel": panel.split,
        "panel_hash": panel.hash,
        "panel_size": len(panel),
        "evaluation_seed": seed,
        "checkpoint_hash": checkpoint_hash(run),
        "prompt": {"template": "alfworld-v1", "version": 1, "hash": sha256_json("prompt")},
        "sampling": {"temperature": 0.4, "max_tokens": 64},
        "engine": "transformers",
        "packages": {"python": "3.11"},
        "commit": "0" * 40,
    }


def make_evaluation(
    config: Config, run: Run, split: str, seed: int, length: int = 3, checkpoint: str | None = None
) -> Path:
    panel = panel_of(config, run, split)
    path = run.episodes(config, split, seed)
    described = metadata(config, run, split, seed)
    store = EpisodeStore(path, described | {"checkpoint_hash": checkpoint or described["checkpoint_hash"]})
    make = make_trials if run.method == "reflexion" else make_episode
    store.append([make(run, task, split, seed, length) for task in panel.tasks], wall_s=0.5)
    store.finish()
    return path


def make_episode(run: Run, task: Task, split: str, seed: int, length: int = 3) -> Episode:
    """Harder tasks are harder for every method; each task has its own difficulty, each type as well."""
    difficulty = stream(0, "tests", "difficulty", task.id).normal(0, 0.2) + 0.04 * (len(task.type) % 7 - 3)
    loss = 0.05 if split == "out_of_domain" else 0.0
    draw = stream(seed, "tests", str(run), task.id)
    won = bool(draw.random() < SKILL[run.method] + 0.02 * run.history - loss - difficulty)
    score = 1.0 if won else round(float(draw.random()) * 0.8, 3) if run.environment == "webshop" else 0.0
    places = ["cabinet 1", "drawer 2", "fridge 1", "sinkbasin 1"]
    steps = [make_step(places[int(draw.integers(4))], number) for number in range(length if won else 2 * length)]
    steps[-1].reward = 10.0 if won else 0.0
    if run.environment == "webshop" and score > 0:
        steps[-1].action = "click[buy now]"
        steps[-1].admissible += ("click[buy now]",)
    return Episode(task.id, task.type, 0, task.goal, steps, won=won, score=score)


def make_trials(run: Run, task: Task, split: str, seed: int, length: int = 3, limit: int = 3) -> Trials:
    """Up to `limit` episodes of one task, the last won or not."""
    trials: list[Episode] = []
    while not trials or (len(trials) < limit and not trials[-1].won):
        episode = make_episode(run, task, split, seed + 1000 * len(trials), length)
        trials.append(replace(episode, rollout=len(trials)))
    last, notes = trials[-1], len(trials) - 1
    goal = "\n".join([last.goal, *(f"- note {number}: open <b>the fridge</b>" for number in range(notes))])
    return Trials(**(vars(last) | {"goal": goal}), trials=trials, reflections=[(50, 10)] * notes)


def make_step(place: str, number: int) -> Step:
    think, action = f"The {place} may hold it.", f"go to {place}"
    return Step(
        state=f"You are at {place}.",
        observation=f"You arrive at {place}. On it you see nothing.",
        admissible=("look", "inventory", f"go to {place}", f"open {place}"),
        prompt_ids=list(range(40)),
        response_ids=list(range(12)),
        log_probs=[-0.5] * 12,
        completion=f"<think>{think}</think><action>{action}</action>",
        think=think,
        action=action,
        invalid=number == 2,
        finish="stop",
        version=0,
    )
