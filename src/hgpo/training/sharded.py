"""A module whose optimizer state, gradients and weights DeepSpeed shards over processes (ZeRO stages 0 to 3)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hgpo.config.machinery import Learner as Settings
from hgpo.errors import CheckpointError, ConfigError
from hgpo.files import read_object, write_json

FORM = "form.json"  # what a saved state can be loaded by


class Sharded:
    """One rank's part of `module`; every rank calls the same methods at the same time.

    Weights in bfloat16 need stage 1 or above: below, DeepSpeed adds their gradients up in bfloat16.
    The process group must be there (`torch.distributed`). Gradients are added up over the backward passes of a step
    and are the mean over the ranks; their norm is clipped to `max_norm`.
    Raises ConfigError if DeepSpeed is not installed.
    """

    def __init__(
        self, module: torch.nn.Module, settings: Settings, learning_rate: float, weight_decay: float, max_norm: float
    ) -> None:
        try:
            import deepspeed
        except ImportError as error:
            mend = "install the extra `gpu`: pip install -e '.[gpu]'"
            raise ConfigError(f"learner.kind deepspeed: {error}", mend) from None
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._form = {"ranks": self.ranks, "zero_stage": settings.zero_stage}
        self._deepspeed = deepspeed
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        adam = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=weight_decay)
        half = any(p.dtype == torch.bfloat16 for p in self._parameters)
        configuration = _configuration(settings, max_norm, half)
        self._engine, *_ = deepspeed.initialize(
            model=module, optimizer=adam, config=configuration, dist_init_required=False
        )

    def __call__(self, *arguments: Any) -> Any:
        return self._engine(*arguments)

    def zero_grad(self) -> None:
        self._engine.zero_grad()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """last: whether it is the step's last backward pass."""
        self._engine.set_gradient_accumulation_boundary(is_boundary=last)
        self._engine.backward(loss)

    def step(self) -> float:
        """Takes the step; the gradient's norm before it was clipped."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]  # there with stage 0 only
        plain = torch.nn.utils.get_total_norm(gradients) if gradients else math.nan
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return float(plain if norm is None else norm)

    @property
    def learning_rate(self) -> float:
        return self._engine.optimizer.param_groups[0]["lr"]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = value

    def gathered(self, parameter: torch.nn.Parameter) -> AbstractContextManager[None]:
        """Within it, `parameter` is whole on every rank; needed with stage 3 only."""
        return self._deepspeed.zero.GatheredParameters([parameter])

    def save(self, folder: Path, tag: str) -> None:
        self._engine.save_checkpoint(str(folder), tag=tag)
        if self.rank == 0:
            write_json(folder / tag / FORM, self._form)

    def load(self, folder: Path, tag: str) -> None:
        """Raises CheckpointError for a state that was saved by another number of ranks or with another ZeRO stage."""
        form = read_object(folder / tag / FORM) if (folder / tag / FORM).exists() else self._form
        if form != self._form:
            raise CheckpointError(
                f"{folder} was saved by {form['ranks']} learner ranks with ZeRO stage {form['zero_stage']}; "
                f"{self.ranks} ranks with stage {self._form['zero_stage']} cannot go on from it",
                "set placement.learner_ranks and learner.zero_stage back, or delete the run's folder and start anew",
            )
        path, _ = self._engine.load_checkpoint(str(folder), tag=tag)
        if path is None:
            raise CheckpointError(f"{folder} holds no state of DeepSpeed called {tag}", "start the run anew")

    def sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sums)
        return sums

    def close(self) -> None:
        self._engine.destroy()


def _configuration(settings: Settings, max_norm: float, half: bool) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": settings.zero_stage}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if settings.offload_weights:
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    # Gradients of bfloat16 weights are added up in float32: of many micro-batches the small ones would be rounded away.
    exact: dict[str, Any] = {"data_types": {"grad_accum_dtype": "fp32"}} if half else {}
    return exact | {
        "train_batch_size": dist.get_world_size(),
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_norm,
        "bf16": {"enabled": half},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
