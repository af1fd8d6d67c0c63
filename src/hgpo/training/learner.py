"""The learner: log-probabilities of responses, and optimizer steps, of one process or of each of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hgpo.config import Training
from hgpo.config.machinery import Learner as Settings
from hgpo.errors import HgpoError
from hgpo.rollout.memory import out_of_memory
from hgpo.rollout.policy import named_weights, write_policy
from hgpo.streams import stream
from hgpo.training.adapters import without_adapters
from hgpo.training.batches import PADDING, Row, make_batch, micro_batches, padding_share, share_of, to_device
from hgpo.training.loss import Entropy, Measure, clipped_policy_loss, k3, measure_logits, response_log_probs
from hgpo.training.optimizer import Optimizer

SUMS = ("loss/policy", "loss/kl", "loss/entropy", "clip_share", "tokens")


@dataclass(frozen=True)
class Sample:
    """What the policy loss needs of one step; all arrays are float32 (response tokens,).

    weights: truncated importance weights of the tokens, None for 1.
    """

    row: Row
    advantage: float
    old_log_probs: np.ndarray
    reference_log_probs: np.ndarray
    weights: np.ndarray | None = None


class Learner:
    """Computes log-probabilities and takes PPO steps with AdamW.

    The loss of a mini-batch is the mean over all its response tokens, exactly, however it is cut into micro-batches
    and spread over ranks (token-mean aggregation).

    reference: the policy that the KL loss keeps close to; None if that is `model` without its adapters.
    tokenizer: written beside the policy, not used otherwise.
    rank, ranks: which of how many learner processes this is; each computes its share of the micro-batches.
    """

    def __init__(
        self,
        model: Any,
        training: Training,
        pad: int,
        settings: Settings | None = None,
        reference: Any = None,
        tokenizer: Any = None,
    ) -> None:
        self.model, self.training, self.pad, self.tokenizer = model, training, pad, tokenizer
        self.settings, self.reference = settings or Settings(), reference
        if self.settings.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._least_rows = 2 if self.settings.compile else 1  # one row alone would be compiled separately
        self.measure: Measure = measure_logits
        if self.settings.compile:
            self.measure = torch.compile(measure_logits, dynamic=True)
            for policy in (model, reference):
                compile_layers(policy)
        self.optimizer = self._make_optimizer()
        self.rank, self.ranks = self.optimizer.rank, self.optimizer.ranks

    def log_probs(self, rows: Sequence[Row], model: Any = None) -> list[np.ndarray]:
        """Log-probabilities of every row's response under `model` (default: the policy), in row order."""
        computed = self.share_of_log_probs(rows, model)
        return [computed[index] for index in range(len(rows))]

    def reference_log_probs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """The same under the reference policy."""
        computed = self.share_of_reference_log_probs(rows)
        return [computed[index] for index in range(len(rows))]

    def share_of_reference_log_probs(self, rows: Sequence[Row]) -> dict[int, np.ndarray]:
        if self.reference is not None:
            return self.share_of_log_probs(rows, self.reference)
        with without_adapters(self.model):
            return self.share_of_log_probs(rows)

    @torch.no_grad()
    def share_of_log_probs(self, rows: Sequence[Row], model: Any = None) -> dict[int, np.ndarray]:
        """This rank's part of them, by row index."""
        model = model or self.model
        order: list[int] = []
        computed: list[torch.Tensor] = []  # fetched at the end: a GPU is not waited for in between
        for indices, _ in share_of(self._micro_batches(rows), self.rank, self.ranks):
            with self._memory("log-probabilities"):
                batch = make_batch([rows[i] for i in indices], self.pad, self.device, self._least_rows)
                computed.append(self._forward(model, batch))
            order += indices
        if not computed:
            return {}
        ends = np.cumsum([len(rows[i].response_ids) for i in order])
        return dict(zip(order, np.split(torch.cat(computed).cpu().numpy(), ends[:-1]), strict=True))

    def update(self, samples: Sequence[Sample], seed: int, iteration: int) -> dict[str, float]:
        """Takes the optimizer steps of one iteration; mini-batches are drawn by the stream `shuffling`.

        Raises HgpoError if loss or gradient is not finite; the weights are then those of the last good step.
        """
        training, sums, norms, padding = self.training, dict.fromkeys(SUMS, 0.0), [], []
        size = training.mini_batch_steps or len(samples)
        self._set_learning_rate(iteration)
        self.model.train()
        try:
            for epoch in range(training.epochs):
                order = stream(seed, "shuffling", iteration, epoch).permutation(len(samples))
                for start in range(0, len(samples), size):
                    mini_batch = [samples[i] for i in order[start : start + size]]
                    norm, step_sums, share = self._step(mini_batch)
                    norms.append(norm)
                    padding.append(share)
                    for key in SUMS:
                        sums[key] += step_sums[key]
        finally:
            self.model.eval()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # an engine on the same GPU wakes up next
        tokens = max(sums.pop("tokens"), 1.0)
        return {key: value / tokens for key, value in sums.items()} | {
            "gradient_norm": float(np.mean(norms)),
            "padding_share": float(np.mean(padding)),
            "learning_rate": self.learning_rate,
        }

    def _step(self, samples: Sequence[Sample]) -> tuple[float, dict[str, float], float]:
        """One optimizer step: (gradient norm, sums over the tokens of all ranks, share of padding)."""
        rows = [sample.row for sample in samples]
        tokens = sum(len(row.response_ids) for row in rows)
        batches = self._micro_batches(rows)
        share = share_of(batches, self.rank, self.ranks)
        sums = torch.zeros(len(SUMS), device=self.device)
        self.optimizer.zero_grad()
        for number, (indices, counts) in enumerate(share):
            with self._memory("update"):
                loss, part = self._micro_loss([samples[i] for i in indices])
                self.optimizer.backward(loss.sum() * (float(counts) * self.ranks / tokens), number == len(share) - 1)
            sums += part * float(counts)
        totals = dict(zip(SUMS, self.optimizer.sum_over_ranks(sums).tolist(), strict=True))
        norm = self.optimizer.step() if all(math.isfinite(value) for value in totals.values()) else math.nan
        if not math.isfinite(norm):
            raise HgpoError(
                "the loss or its gradient is not finite",
                "lower training.learning_rate, or use dtype float32 for the model",
            )
        return norm, totals, padding_share(rows, batches)

    def _micro_batches(self, rows: Sequence[Row]) -> list[list[int]]:
        on_gpu = self.device.type == "cuda"  # where a small batch takes nearly as long as a large one
        batches = micro_batches(rows, self.training.token_budget, PADDING, self.ranks, even=on_gpu)
        if on_gpu:  # the largest first: what the GPU gave to it serves all others
            batches.sort(key=lambda indices: -len(indices) * max(len(rows[i]) for i in indices))
        return batches

    def _micro_loss(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        """(loss of every response token, sums of what is measured in the order of SUMS)."""
        training = self.training
        batch = make_batch([sample.row for sample in samples], self.pad, self.device, self._least_rows)
        log_probs, entropy = self._score(batch)
        lengths = np.array([len(sample.row.response_ids) for sample in samples])
        advantages = self._tensor(np.repeat([sample.advantage for sample in samples], lengths))
        old = self._tensor(np.concatenate([sample.old_log_probs for sample in samples]))
        reference = self._tensor(np.concatenate([sample.reference_log_probs for sample in samples]))
        policy, clipped = clipped_policy_loss(
            log_probs,
            old,
            advantages,
            training.clip,
            training.clip_high,
            torch.as_tensor(lengths, device=self.device) if training.ratio == "sequence" else None,
            training.dual_clip,
        )
        if samples[0].weights is not None:
            policy = policy * self._tensor(np.concatenate([sample.weights for sample in samples]))
        kl = k3(log_probs, reference)
        loss = policy + training.kl_coefficient * kl
        if self.entropy == "gradient":
            loss = loss - training.entropy_coefficient * entropy
        measured = (policy, kl, entropy, clipped.float(), torch.ones_like(policy))
        return loss, torch.stack([values.detach().sum() for values in measured])

    @property
    def entropy(self) -> Entropy:
        return "gradient" if self.training.entropy_coefficient > 0 else "value"

    # -- what DeepSpeedLearner does differently -------------------------------------------------------------------

    def _make_optimizer(self) -> Any:
        training = self.training
        return Optimizer(
            self.model.parameters(), training.learning_rate, training.weight_decay, training.max_gradient_norm
        )

    def _score(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return response_log_probs(self.model, batch, self.training.temperature, self.entropy, self.measure)

    def _forward(self, model: Any, batch: Any) -> torch.Tensor:
        return response_log_probs(model, batch, self.training.temperature, "no", self.measure)[0]

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def learning_rate(self) -> float:
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer.learning_rate = value

    def _set_learning_rate(self, iteration: int) -> None:
        warm_up = self.training.warm_up_iterations
        share = min(1.0, (iteration + 1) / warm_up) if warm_up else 1.0
        self.learning_rate = self.training.learning_rate * share

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy's weights as `hgpo.rollout.policy.named_weights` gives them."""
        return named_weights(self.model)

    def write_policy(self, folder: Path) -> None:
        """Writes the policy into an existing folder, as transformers and vLLM load it."""
        if self.rank == 0:
            write_policy(self.model, self.tokenizer, folder)

    def write_state(self, folder: Path) -> None:
        """Writes what a later learner goes on from, except the merged policy: optimizer and trained weights."""
        if self.rank == 0:
            trained = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
            torch.save({"optimizer": self.optimizer.state_dict(), "trained": trained}, folder / "learner.pt")

    @torch.no_grad()
    def read_state(self, folder: Path) -> None:
        state = torch.load(folder / "learner.pt", weights_only=True, map_location=self.device)
        own = dict(self.model.named_parameters())
        for name, weight in state["trained"].items():
            own[name].copy_(weight)
        self.optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Nothing is left behind by this form of the learner."""

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return to_device(np.asarray(values, np.float32), self.device)

    @contextmanager
    def _memory(self, phase: str) -> Iterator[None]:
        with out_of_memory(f"the learner's {phase}", self._memory_hint):
            yield

    def _memory_hint(self) -> str:
        mends = [f"lower training.token_budget ({self.training.token_budget})"]
        if not self.settings.gradient_checkpointing:
            mends.append("set learner.gradient_checkpointing: true")
        if self.settings.kind == "deepspeed" and not self.settings.offload_optimizer:
            mends.append("set learner.offload_optimizer: true")
        mends.append("lower engine.gpu_memory if vLLM shares the GPU")
        return ", or ".join(mends)


def compile_layers(model: Any) -> None:
    """Compiles a decoder's layers in place, for batches of any size; equal layers share what is compiled."""
    if model is not None:
        for layer in model.model.layers:
            layer.compile(dynamic=True)
