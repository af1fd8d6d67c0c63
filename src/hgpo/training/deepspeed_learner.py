"""The learner as one of several ranks: DeepSpeed shards optimizer, gradients and weights (ZeRO stages 0 to 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hgpo.errors import CheckpointError, ConfigError
from hgpo.rollout.policy import named_weights
from hgpo.training.batches import Batch
from hgpo.training.learner import Learner
from hgpo.training.loss import response_log_probs

TAG = "deepspeed"


class Scorer(torch.nn.Module):
    """The policy as DeepSpeed sees it: from a batch to log-probabilities and entropies of its response tokens."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: Batch, temperature: float, with_entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return response_log_probs(self.policy, batch, temperature, with_entropy)


class DeepSpeedLearner(Learner):
    """One rank of the learner; every rank calls the same methods with the same arguments at the same time.

    Micro-batches are dealt out to the ranks; losses are scaled so that the gradient is that of the token mean over
    all ranks, whatever each of them got. The process group must be there (`torch.distributed`).
    """

    def _make_optimizer(self) -> Any:
        try:
            import deepspeed
        except ImportError as error:
            mend = "install the extra `gpu`: pip install -e '.[gpu]'"
            raise ConfigError(f"learner.kind deepspeed: {error}", mend) from None
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        training = self.training
        adam = torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
        self._deepspeed = deepspeed
        self._engine, *_ = deepspeed.initialize(
            model=Scorer(self.model), optimizer=adam, config=self._configuration(), dist_init_required=False
        )
        return self._engine.optimizer

    def _configuration(self) -> dict[str, Any]:
        settings, stage = self.settings, self.settings.zero_stage
        zero: dict[str, Any] = {"stage": stage}
        if settings.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        if settings.offload_weights:
            zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        return {
            "train_batch_size": self.ranks,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self.training.max_gradient_norm,
            "bf16": {"enabled": self.model.dtype == torch.bfloat16},
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }

    def _score(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._engine(batch, self.training.temperature, True)

    def _forward(self, model: Any, batch: Batch) -> torch.Tensor:
        if model is not self.model:
            return super()._forward(model, batch)
        return self._engine(batch, self.training.temperature, False)[0]

    def _begin_step(self) -> None:
        self._engine.zero_grad()

    def _backward(self, loss: torch.Tensor, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(is_boundary=last)
        self._engine.backward(loss)

    def _end_step(self, finite: bool) -> float:
        if not finite:
            return math.nan
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]  # there with stage 0 only
        plain = torch.nn.utils.get_total_norm(gradients) if gradients else math.nan
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return float(plain if norm is None else norm)

    def _sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sums)
        return sums

    @property
    def learning_rate(self) -> float:
        return self._engine.optimizer.param_groups[0]["lr"]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = value

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All ranks have to take the weights one after the other; with stage 3 each is gathered for that moment."""
        if self.settings.zero_stage < 3:
            yield from named_weights(self.model)
            return
        for name, parameter in self.model.named_parameters():
            with self._deepspeed.zero.GatheredParameters([parameter]):
                yield name, parameter.detach()

    def write_policy(self, folder: Path) -> None:
        state = {}
        for name, weight in self.named_weights():
            if self.rank == 0:
                state[name] = weight.cpu().clone()
        if self.rank == 0:
            self.model.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)
        dist.barrier()

    def write_state(self, folder: Path) -> None:
        self._engine.save_checkpoint(str(folder), tag=TAG)

    def read_state(self, folder: Path) -> None:
        path, _ = self._engine.load_checkpoint(str(folder), tag=TAG)
        if path is None:
            raise CheckpointError(f"{folder} holds no state of a DeepSpeed learner", "start the run anew")

    def close(self) -> None:
        self._engine.destroy()
