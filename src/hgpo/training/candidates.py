"""Which of several policies of a warm start to keep: the one whose success is nearest to what is wanted."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hgpo.agent import load_template
from hgpo.config import Config
from hgpo.envs import environment_factory
from hgpo.envs.pool import Pool
from hgpo.errors import ConfigError
from hgpo.rollout.collector import Collector, Job
from hgpo.rollout.engines import Engine
from hgpo.rollout.opening import open_engine
from hgpo.rollout.policy import load_weights, named_weights, save_policy
from hgpo.tasks import Panel


@dataclass
class Candidates:
    """Plays held-out training tasks with each policy it is shown and keeps the weights of the best so far.

    panel: the held-out tasks. tried: updates and success of each policy. Success is sampled at the temperature of the
    evaluation.
    """

    config: Config
    model_name: str
    environment: str
    history: int
    panel: Panel
    tried: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = self.config.warm_start_for(self.environment).target_success or 0.0
        self._kept: list[tuple[str, torch.Tensor]] = []
        self._engine: Engine | None = None

    def show(self, model: Any, tokenizer: Any, updates: int) -> None:
        success = self._success(model, tokenizer)
        self.tried.append({"updates": updates, "success": success})
        print(
            f"warm start: success {success:.3f} on {len(self.panel)} held-out tasks after {updates} updates", flush=True
        )
        if self.best() == self.tried[-1]:
            self._kept = [(name, weight.detach().cpu().clone()) for name, weight in named_weights(model)]

    def best(self) -> dict[str, float]:
        """Nearest to the target; of equally near ones the last."""
        return min(reversed(self.tried), key=lambda tried: abs(tried["success"] - self.target))

    def restore(self, model: Any) -> dict[str, Any]:
        """Gives the model the weights of the best, closes the engine, and returns what goes into the record."""
        load_weights(model, self._kept)
        if self._engine:
            self._engine.close()
        return {"candidates": self.tried, "chosen": self.best()}

    def _success(self, model: Any, tokenizer: Any) -> float:
        protocol, evaluation = self.config.environment(self.environment), self.config.evaluation
        if self._engine is None:
            agent = protocol.agent
            with tempfile.TemporaryDirectory() as folder:
                save_policy(model, tokenizer, Path(folder) / "policy")
                self._engine, _ = open_engine(
                    self.config.models[self.model_name],
                    Path(folder) / "policy",
                    agent.max_prompt_tokens + agent.max_response_tokens,
                    len(self.panel),
                )
        else:
            self._engine.update_weights(model, self._engine.version + 1)
        factory = environment_factory(self.environment, self.config.data_folder(self.environment))
        workers = self.config.training_for(self.environment).environment_workers
        with Pool(factory, workers=workers) as pool:
            collector = Collector(
                protocol,
                self.history,
                load_template(protocol.agent.template),
                tokenizer,
                self._engine,
                pool,
                self.config.warm_start_for(self.environment).seed,
            )
            jobs = [Job(task) for task in self.panel.tasks]
            played = list(collector.collect(jobs, evaluation.temperature, ("warm start",), len(jobs)))
        return sum(episode.won for episode in played) / len(played)


def make_candidates(
    config: Config, model_name: str, environment: str, history: int, held_out: Panel | None
) -> Candidates | None:
    """None if no success is aimed at. Raises ConfigError if there are no held-out tasks to measure it on."""
    if config.warm_start_for(environment).target_success is None:
        return None
    if held_out is None:
        raise ConfigError(
            "warm_start.target_success is measured on the held-out training tasks, and there are none",
            "set training.validation_tasks",
        )
    return Candidates(config, model_name, environment, history, held_out)
