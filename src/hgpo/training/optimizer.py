"""AdamW that loses no small step to rounding, whatever the precision of the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


class Optimizer:
    """AdamW on float32 copies of the weights; weights that are float32 themselves are their own copies.

    A step of 1e-6 of a bfloat16 weight would be rounded away; the copies add the steps up. Gradients are added up in
    float32, too, and clipped to the norm `max_norm`. In a process group (`torch.distributed`) every rank holds all of
    it, and a step takes the mean of the ranks' gradients; `hgpo.training.sharded.Sharded` spreads it over them instead.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], learning_rate: float, weight_decay: float, max_norm: float
    ) -> None:
        self._max_norm = max_norm
        grouped = dist.is_available() and dist.is_initialized()
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        self.weights = [p for p in parameters if p.requires_grad]
        self._copies = [p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in self.weights]
        fused = all(p.is_cuda for p in self.weights)
        self._adam = torch.optim.AdamW(self._copies, lr=learning_rate, weight_decay=weight_decay, fused=fused)

    @property
    def learning_rate(self) -> float:
        return self._adam.param_groups[0]["lr"]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for group in self._adam.param_groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        for weight, copy in zip(self.weights, self._copies, strict=True):
            weight.grad = copy.grad = None

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the gradient of `loss` to the step's. last: whether it is the step's last backward pass."""
        loss.backward()
        for weight, copy in zip(self.weights, self._copies, strict=True):
            if copy is not weight and weight.grad is not None:
                copy.grad = weight.grad.float() if copy.grad is None else copy.grad.add_(weight.grad)
                weight.grad = None

    @torch.no_grad()
    def step(self) -> float:
        """Takes the step; the gradient's norm before it was clipped. Nothing is done if that is not finite."""
        if self.ranks > 1:
            gradients = [copy.grad for copy in self._copies if copy.grad is not None]
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                work.wait()
            torch._foreach_div_(gradients, self.ranks)
        norm = float(torch.nn.utils.clip_grad_norm_(self._copies, self._max_norm))
        if norm == norm and norm != float("inf"):
            self._adam.step()
            for weight, copy in zip(self.weights, self._copies, strict=True):
                if copy is not weight:
                    weight.copy_(copy)
        return norm

    def sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        if self.ranks > 1:
            dist.all_reduce(sums)
        return sums

    def state_dict(self) -> dict[str, Any]:
        copies = [c.detach() for w, c in zip(self.weights, self._copies, strict=True) if c is not w]
        return {"adam": self._adam.state_dict(), "copies": copies}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        own = [c for w, c in zip(self.weights, self._copies, strict=True) if c is not w]
        for copy, saved in zip(own, state["copies"], strict=True):
            copy.copy_(saved)
