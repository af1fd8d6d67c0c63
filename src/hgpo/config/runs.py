"""The runs of an experiment and where each of them lies."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hgpo import advantages
from hgpo.advantages.source import estimator_source
from hgpo.config.experiment import SCRIPTED, Config
from hgpo.errors import ConfigError


@dataclass(frozen=True, order=True)
class Run:
    """One training run. `str(run)` is its folder below `runs/`, from which a person reads what it is."""

    model: str
    environment: str
    method: str
    history: int
    seed: int

    def __str__(self) -> str:
        return f"{self.model}/{self.environment}/{self.method}/K{self.history}/seed{self.seed}"

    def folder(self, config: Config) -> Path:
        return config.folder / "runs" / str(self)

    def checkpoint_folder(self, config: Config) -> Path:
        """Where training states lie. The environment variable CHECKPOINTS_DIR moves them, e.g. to a scratch disk."""
        elsewhere = os.environ.get("CHECKPOINTS_DIR")
        return Path(elsewhere) / config.name / str(self) if elsewhere else self.folder(config) / "checkpoints"

    def start_folder(self, config: Config) -> Path:
        """The checkpoint that the run starts from: shared by all methods and training seeds."""
        return config.folder / "start" / self.model / self.environment / f"K{self.history}"

    def episodes(self, config: Config, split: str, evaluation_seed: int) -> Path:
        return config.folder / "episodes" / str(self) / split / f"seed{evaluation_seed}.parquet"


def plan_runs(config: Config) -> list[Run]:
    """Every training run of the matrix that can be done, in the order of the configuration."""
    return [run for run in _cells(config) if obstacle(config, run) is None]


def plan_left_out(config: Config) -> dict[Run, str]:
    """The training runs of the matrix that cannot be done as configured, and why."""
    reasons = {run: obstacle(config, run) for run in _cells(config)}
    return {run: f"{reason[0]}; {reason[1]}" for run, reason in reasons.items() if reason}


def check_model(config: Config, model: str) -> None:
    """Raises ConfigError listing the models of a configuration if it has none of this name."""
    if model not in config.models:
        raise ConfigError(f"--model: unknown model {model!r}", f"name one of {', '.join(sorted(config.models))}")


def check_chat(config: Config, model: str, environment: str) -> None:
    """Raises ConfigError if a model that is made here is to be asked through a chat template: it has none."""
    if config.models[model].source == "embedded" and config.environment(environment).agent.chat:
        raise ConfigError(
            f"environments.{environment}.agent.chat is true, but the embedded model {model!r} has no chat template",
            f"set environments.{environment}.agent.chat: false",
        )


def check_run(config: Config, run: Run) -> None:
    """Raises ConfigError if a configuration has no such model or method, or the method's options are wrong."""
    check_model(config, run.model)
    known = sorted({*advantages.methods(), *config.methods})
    if run.method not in known:
        raise ConfigError(f"--method: unknown method {run.method!r}", f"name one of {', '.join(known)}")
    try:
        config.estimator_for(run.method, run.environment, run.history)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def estimator_identity(config: Config, method: str, environment: str, history: int) -> dict[str, Any]:
    """What an estimator computes beyond the options that a configuration gives: all its options, and its code."""
    estimator, options = config.estimator_for(method, environment, history)
    resolved = dataclasses.asdict(advantages.check_options(estimator, options))
    return {"estimator_options": resolved, "estimator_source": estimator_source(estimator)}


def obstacle(config: Config, run: Run) -> tuple[str, str] | None:
    """(why a run of the matrix cannot be done as configured, what mends it), or None."""
    model, training = config.models[run.model], config.training_for(run.environment)
    estimator, _ = config.estimator_for(run.method, run.environment, run.history)
    if estimator == "ppo" and training.lora.rank:
        return (
            f"method {run.method}: the critic of ppo starts from a whole policy, not from adapters",
            "set training.lora.rank: 0, or take a method without critic",
        )
    if training.lora.rank and model.learner.kind == "deepspeed" and model.learner.zero_stage == 3:
        return (
            "training.lora: adapters cannot be merged while ZeRO stage 3 shards the weights they adapt",
            f"set models.{run.model}.learner.zero_stage: 2; adapters leave little to shard",
        )
    return None


def _cells(config: Config) -> list[Run]:
    m = config.matrix
    models = [name for name in m.models if config.models[name].trainable]
    return [Run(*cell) for cell in product(models, m.environments, m.methods, m.history, m.training_seeds)]


def plan_baselines(config: Config) -> list[Run]:
    """The baselines of the matrix, seen as runs with training seed 0.

    `random` and `expert` know neither a model nor K: each model has them once, at the first K, as floor and ceiling.
    """
    m = config.matrix
    return [
        Run(model, environment, baseline, history, 0)
        for model, environment, baseline, history in product(m.models, m.environments, m.baselines, m.history)
        if baseline not in SCRIPTED or history == m.history[0]
    ]
