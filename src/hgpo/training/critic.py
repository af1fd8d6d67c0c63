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
from hgpo.config.machinery import Learner as Machinery
from hgpo.errors import HgpoError
from hgpo.rollout.memory import out_of_memory
from hgpo.streams import stream
from hgpo.training.batches import PADDING, Batch, Row, make_batch, micro_batches, share_of
from hgpo.training.loss import value_loss
from hgpo.training.optimizer import Optimizer


class ValueModel(torch.nn.Module):
    """A decoder, at first that of a policy, with a linear head that starts at 0: from a batch to values (rows,)."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy.model).requires_grad_(True)
        self.head = torch.nn.Linear(policy.config.hidden_size, 1, device=policy.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> torch.Tensor:
        hidden = self.trunk(input_ids=batch.ids, use_cache=False).last_hidden_state.flatten(0, 1)[batch.sources]
        return self.head(hidden.to(self.head.weight.dtype)).float()[:, 0]


class Critic:
    """Learns the returns of steps with AdamW.

    A step's value is read at the last token of its prompt, before anything of the response is known.
    machinery: how the learner beside it is run. rank, ranks: as of `hgpo.training.learner.Learner`.
    """

    def __init__(
        self,
        policy: Any,
        settings: Settings,
        token_budget: int,
        max_gradient_norm: float,
        pad: int,
        machinery: Machinery | None = None,
    ) -> None:
        self.settings, self.machinery = settings, machinery or Machinery()
        self.max_gradient_norm, self._token_budget, self._pad = max_gradient_norm, token_budget, pad
        self._device = policy.device
        self.model = ValueModel(policy).eval()
        if self.machinery.gradient_checkpointing:
            self.model.trunk.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.optimizer = self._make_optimizer()
        self.rank, self.ranks = self.optimizer.rank, self.optimizer.ranks

    def values(self, rows: Sequence[Row]) -> np.ndarray:
        """The value of each step, shape (steps,), float32."""
        computed = self.share_of_values(rows)
        return np.array([computed[index] for index in range(len(rows))], np.float32)

    @torch.no_grad()
    def share_of_values(self, rows: Sequence[Row]) -> dict[int, float]:
        """This rank's part of them, by row index."""
        prompts = [_prompt(row) for row in rows]
        result: dict[int, float] = {}
        for indices, _ in self._share(prompts):
            result.update(zip(indices, self._values([prompts[i] for i in indices]).tolist(), strict=True))
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
        self.model.train()
        for epoch in range(self.settings.epochs):
            order = stream(seed, "shuffling", "critic", iteration, epoch).permutation(len(rows))
            for start in range(0, len(rows), size):
                chosen = order[start : start + size]
                losses.append(self._step([prompts[i] for i in chosen], returns[chosen], old_values[chosen]))
        self.model.eval()
        spread = float(np.var(returns))
        return {
            "loss/value": float(np.mean(losses)),
            "value/mean": float(old_values.mean()),
            "value/explained": 1 - float(np.var(returns - old_values)) / spread if spread > 0 else 0.0,
        }

    def write_state(self, folder: Path) -> None:
        if self.rank == 0:
            weights = {name: p.detach() for name, p in self.model.named_parameters()}
            torch.save({"weights": weights, "optimizer": self.optimizer.state_dict()}, folder / "critic.pt")

    @torch.no_grad()
    def read_state(self, folder: Path) -> None:
        state = torch.load(folder / "critic.pt", weights_only=True, map_location=self._device)
        for name, parameter in self.model.named_parameters():
            parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])

    def _share(self, prompts: list[Row]) -> list[tuple[list[int], bool]]:
        even = self._device.type == "cuda"
        batches = micro_batches(prompts, self._token_budget, PADDING, self.ranks, even)
        return share_of(batches, self.rank, self.ranks)

    def _step(self, prompts: list[Row], returns: np.ndarray, old_values: np.ndarray) -> float:
        """One optimizer step; the mean loss of all its steps, over all ranks."""
        share = self._share(prompts)
        total = torch.zeros((), device=self._device)
        self.optimizer.zero_grad()
        for number, (indices, counts) in enumerate(share):
            values = self._values([prompts[i] for i in indices])
            wanted, old = (
                torch.as_tensor(a[indices], dtype=torch.float32, device=values.device) for a in (returns, old_values)
            )
            loss = value_loss(values, old, wanted, self.settings.clip).sum() / len(prompts) * float(counts)
            self.optimizer.backward(loss * self.ranks, number == len(share) - 1)
            total += loss.detach()
        mean = float(self.optimizer.sum_over_ranks(total))
        if not math.isfinite(mean) or not math.isfinite(self.optimizer.step()):
            raise HgpoError("the critic's loss or gradient is not finite", "lower training.critic.learning_rate")
        return mean

    def _values(self, prompts: list[Row]) -> torch.Tensor:
        with out_of_memory("the critic", lambda: f"lower training.token_budget ({self._token_budget})"):
            return self._forward(make_batch(prompts, self._pad, self._device))

    # -- what DeepSpeedCritic does differently --------------------------------------------------------------------

    def _make_optimizer(self) -> Any:
        return Optimizer(self.model.parameters(), self.settings.learning_rate, 0.0, self.max_gradient_norm)

    def _forward(self, batch: Batch) -> torch.Tensor:
        return self.model(batch)


def _prompt(row: Row) -> Row:
    """The row's prompt, with one token after it whose prediction is the place where the value is read."""
    return Row(row.prompt_ids, row.response_ids[:1])
