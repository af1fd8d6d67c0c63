"""A miniature experiment on a generated shop, in a folder of its own: seconds from nothing to a trained run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from hgpo.cli import cli
from hgpo.config import Run, load_config
from hgpo.training.loop import train
from hgpo.training.signals import StopSignal

BODY: dict[str, Any] = {
    "name": "shop",
    "models": {
        "tiny": {
            "embedded": {
                "hidden_size": 64,
                "layers": 1,
                "heads": 2,
                "key_value_heads": 1,
                "intermediate_size": 64,
                "vocabulary": 600,
            }
        }
    },
    "matrix": {"models": ["tiny"], "environments": ["webshop"], "methods": ["hgpo", "ppo"], "history": [1]},
    "environments": {
        "webshop": {
            "max_steps": 8,
            "agent": {
                "template": "webshop-compact-v1",
                "max_prompt_tokens": 320,
                "max_response_tokens": 8,
                "chat": False,
            },
        }
    },
    "warm_start": {"demonstrations": 2, "epochs": 1},
    "training": {
        "iterations": 3,
        "tasks_per_iteration": 2,
        "rollouts_per_task": 2,
        "learning_rate": 1e-3,
        "mini_batch_steps": 12,
        "checkpoint_every": 1,
        "validate_every": 2,
        "validation_tasks": 2,
    },
}
# What a metrics line says about the machine instead of the run.
MACHINE = ("time/", "memory/", "tokens_per_s", "engine/busy_share")


class Experiment:
    """`folder` holds data and starting checkpoint; `other` makes copies that start from the same checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> Experiment:
        for command in self.preparation():
            cli.main(command, standalone_mode=False)
        return self

    def preparation(self, **changes) -> list[list[str]]:
        """The commands of `hgpo` that make data and starting checkpoint."""
        path = str(self.config(**changes))
        return [
            ["prepare-data", "--config", path, "--environment", "webshop"],
            ["warm-start", "--config", path, "--model", "tiny", "--environment", "webshop", "--history", "1"],
        ]

    def other(self, folder: Path) -> Experiment:
        shutil.copytree(self.folder / "results/shop/start", folder / "results/shop/start")
        (folder / "data").symlink_to(self.folder / "data")
        return Experiment(folder)

    def config(
        self,
        model: dict[str, Any] | None = None,
        tracking: dict[str, Any] | None = None,
        warm_start: dict[str, Any] | None = None,
        agent: dict[str, Any] | None = None,
        **training,
    ) -> Path:
        """Writes the configuration with these changes of its sections, `model` being `models.tiny` and `agent` the
        web shop's."""
        body = json.loads(json.dumps(BODY))
        body |= {"results": str(self.folder / "results"), "data": {"directory": str(self.folder / "data")}}
        body["models"]["tiny"] |= model or {}
        body["training"] |= training
        body["warm_start"] |= warm_start or {}
        body["environments"]["webshop"]["agent"] |= agent or {}
        body["tracking"] = {"tensorboard": False} | (tracking or {})
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(body))
        return path

    def train(self, method: str = "hgpo", stopped: StopSignal | None = None, allow: bool = False, **changes) -> Path:
        """Trains (or goes on) in this process; returns the run's folder."""
        run = Run("tiny", "webshop", method, 1, 0)
        return train(load_config(self.config(**changes)), run, stopped or StopSignal(), allow).parent

    def command(self, *options: str, method: str = "hgpo", **changes) -> list[str]:
        """The command that trains (or goes on) in a process of its own."""
        what = ["--model", "tiny", "--environment", "webshop", "--method", method, "--history", "1", "--seed", "0"]
        return [sys.executable, "-m", "hgpo", "train", "--config", str(self.config(**changes)), *what, *options]

    def run_folder(self, method: str = "hgpo") -> Path:
        return self.folder / f"results/shop/runs/tiny/webshop/{method}/K1/seed0"

    def metrics(self, method: str = "hgpo") -> list[dict[str, Any]]:
        """The run's metrics, without what depends on the machine."""
        path = self.run_folder(method) / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{k: v for k, v in line.items() if not k.startswith(MACHINE)} for line in lines]

    def weights(self, method: str = "hgpo", name: str = "final") -> bytes:
        return (self.run_folder(method) / name / "model.safetensors").read_bytes()

    def checkpoints(self, method: str = "hgpo") -> list[str]:
        return sorted(p.name for p in (self.run_folder(method) / "checkpoints").glob("iteration-*"))
