"""The critic of `ppo`: what return a policy may expect from a prompt on."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hgpo.config.machinery import Critic as Settings
from hgpo.errors import HgpoError
from hgpo.rollout.memory import out_of_memory
from hgpo.streams import stream
from hgpo.training.batches import PADDING, Row, make_batch, micro_batches
from hgpo.training.loss import value_loss
from hgpo.training.optimizer import Optimizer


class Critic:
    """A decoder, at first that of the starting policy, with a linear value head that starts at 0.

    A step's value is read at the last token of its prompt, before anything of the response is known.
    """

    def __init__(self, policy: Any, settings: Settings, token_budget: int, max_gradient_norm: float, pad: int) -> None:
        self.settings, self._token_budget, self._pad = settings, token_budget, pad
        self._max_gradient_norm = max_gradient_norm
        self.trunk = copy.deepcopy(policy.model).requires_grad_(True)
        self.head = torch.nn.Linear(policy.config.hidden_size, 1, device=policy.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self._optimizer = Optimizer(self._parameters().values(), settings.learning_rate, 0.0)

    @torch.no_grad()
    def values(self, rows: Sequence[Row]) -> np.ndarray:
        """The value of each step, shape (steps,), float32."""
        result = np.zeros(len(rows), np.float32)
        prompts = [_prompt(row) for row in rows]
        for indices in micro_batches(prompts, self._token_budget, PADDING):
            result[indices] = self._forward([prompts[i] for i in indices]).cpu().numpy()
        return result

    def update(
        self, rows: Sequence[Row], returns: np.ndarray, old_values: np.ndarray, size: int, seed: int, iteration: int
    ) -> dict[str, float]:
        """Learns the returns in mini-batches of `size` steps (0: all) drawn by the stream `shuffling`.

        returns, old_values: (steps,). Measures the loss and the share of the returns' variance that the old values
        explain. Raises HgpoError if the loss is not finite.
        """
        prompts = [_prompt(row) for row in rows]
        losses = []
        size = size or len(rows)
        self.trunk.train()
        for epoch in range(self.settings.epochs):
            order = stream(seed, "shuffling", "critic", iteration, epoch).permutation(len(rows))
            for start in range(0, len(rows), size):
                chosen = order[start : start + size]
                losses.append(self._step([prompts[i] for i in chosen], returns[chosen], old_values[chosen]))
        self.trunk.eval()
        spread = float(np.var(returns))
        return {
            "loss/value": float(np.mean(losses)),
            "value/mean": float(old_values.mean()),
            "value/explained": 1 - float(np.var(returns - old_values)) / spread if spread > 0 else 0.0,
        }

    def write_state(self, folder: Path) -> None:
        weights = {name: p.detach() for name, p in self._parameters().items()}
        torch.save({"weights": weights, "optimizer": self._optimizer.state_dict()}, folder / "critic.pt")

    @torch.no_grad()
    def read_state(self, folder: Path) -> None:
        state = torch.load(folder / "critic.pt", weights_only=True, map_location=self.head.weight.device)
        for name, parameter in self._parameters().items():
            parameter.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])

    def _step(self, prompts: list[Row], returns: np.ndarray, old_values: np.ndarray) -> float:
        total = 0.0
        self._optimizer.zero_grad()
        for indices in micro_batches(prompts, self._token_budget, PADDING):
            values = self._forward([prompts[i] for i in indices])
            wanted, old = (
                torch.as_tensor(a[indices], dtype=torch.float32, device=values.device) for a in (returns, old_values)
            )
            loss = value_loss(values, old, wanted, self.settings.clip).sum() / len(prompts)
            loss.backward()
            self._optimizer.accumulate()
            total += float(loss.detach())
        norm = self._optimizer.step(self._max_gradient_norm) if math.isfinite(total) else math.nan
        if not math.isfinite(norm):
            raise HgpoError("the critic's loss or gradient is not finite", "lower training.critic.learning_rate")
        return total

    def _forward(self, prompts: list[Row]) -> torch.Tensor:
        with out_of_memory("the critic", lambda: f"lower training.token_budget ({self._token_budget})"):
            batch = make_batch(prompts, self._pad, self.head.weight.device)
            hidden = self.trunk(input_ids=batch.ids, use_cache=False).last_hidden_state.flatten(0, 1)[batch.sources]
            return self.head(hidden.float())[:, 0]

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        trunk = {f"trunk.{name}": p for name, p in self.trunk.named_parameters()}
        return trunk | {f"head.{name}": p for name, p in self.head.named_parameters()}


def _prompt(row: Row) -> Row:
    """The row's prompt, with one token after it whose prediction is the place where the value is read."""
    return Row(row.prompt_ids, row.response_ids[:1])
