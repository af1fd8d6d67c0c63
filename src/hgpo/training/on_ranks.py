"""Learner and critic as one of several ranks, each in a process of its own; DeepSpeed shards what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hgpo.rollout.policy import named_weights, write_state_dict
from hgpo.training.batches import Batch
from hgpo.training.critic import Critic
from hgpo.training.learner import Learner
from hgpo.training.loss import Entropy, Measure, response_log_probs
from hgpo.training.sharded import Sharded

LEARNER_TAG, CRITIC_TAG = "deepspeed", "critic"


class Scorer(torch.nn.Module):
    """The policy as DeepSpeed sees it: from a batch to log-probabilities and entropies of its response tokens."""

    def __init__(self, policy: Any, measure: Measure) -> None:
        super().__init__()
        self.policy, self.measure = policy, measure

    def forward(self, batch: Batch, temperature: float, entropy: Entropy) -> tuple[torch.Tensor, torch.Tensor]:
        return response_log_probs(self.policy, batch, temperature, entropy, self.measure)


class DeepSpeedLearner(Learner):
    """One rank of the learner; every rank calls the same methods with the same arguments at the same time.

    Losses are scaled so that the gradient is that of the mean over all ranks, whatever each of them got.
    """

    def _make_optimizer(self) -> Sharded:
        training = self.training
        return Sharded(
            Scorer(self.model, self.measure),
            self.settings,
            training.learning_rate,
            training.weight_decay,
            training.max_gradient_norm,
        )

    def _score(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.optimizer(batch, self.training.temperature, self.entropy)

    def _forward(self, model: Any, batch: Batch) -> torch.Tensor:
        if model is not self.model:
            return super()._forward(model, batch)
        return self.optimizer(batch, self.training.temperature, "no")[0]

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All ranks have to take the weights one after the other; with stage 3 each is gathered for that moment."""
        if self.settings.zero_stage < 3:
            yield from named_weights(self.model)
            return
        for name, parameter in self.model.named_parameters():
            with self.optimizer.gathered(parameter):
                yield name, parameter.detach()

    def write_policy(self, folder: Path) -> None:
        state = {}
        for name, weight in self.named_weights():
            if self.rank == 0:
                state[name] = weight.cpu().clone()
        if self.rank == 0:
            write_state_dict(self.model, self.tokenizer, state, folder)
        dist.barrier()

    def write_state(self, folder: Path) -> None:
        self.optimizer.save(folder, LEARNER_TAG)

    def read_state(self, folder: Path) -> None:
        self.optimizer.load(folder, LEARNER_TAG)

    def close(self) -> None:
        self.optimizer.close()


class DeepSpeedCritic(Critic):
    """One rank of the critic, as `DeepSpeedLearner` is one of the learner."""

    def _make_optimizer(self) -> Sharded:
        return Sharded(self.model, self.machinery, self.settings.learning_rate, 0.0, self.max_gradient_norm)

    def _forward(self, batch: Batch) -> torch.Tensor:
        return self.optimizer(batch)

    def write_state(self, folder: Path) -> None:
        self.optimizer.save(folder, CRITIC_TAG)

    def read_state(self, folder: Path) -> None:
        self.optimizer.load(folder, CRITIC_TAG)
