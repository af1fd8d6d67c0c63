"""Batched generation with a transformers model in this process, on CPU or one GPU."""

from __future__ import annotations

import inspect
from collections import deque
from typing import Any

import numpy as np
import torch

from hgpo.errors import CheckpointError
from hgpo.rollout.engines import Completion, Request, check_request
from hgpo.rollout.memory import out_of_memory
from hgpo.rollout.policy import load_weights, named_weights

HINT = (
    "lower training.rollouts_per_task, evaluation.batch_size or agent.max_prompt_tokens (fewer tokens at once), or set "
    "engine.kind: vllm"
)


class TransformersEngine:
    """Generates whole batches in the order of submission.

    The random numbers of a request are drawn from its own seed, so a completion depends on its request alone, up
    to the rounding of batched matrix products. It shares the model object with the learner: `update_weights`
    then only takes the new version over.
    """

    static = True

    def __init__(self, model: Any, end_token: int, pad_token: int, max_batch: int = 64, version: int = 0) -> None:
        self.model = model
        self.version = version
        self._end, self._pad, self._max_batch = end_token, pad_token, max_batch
        self._waiting: deque[Request] = deque()
        self._context = int(model.config.max_position_embeddings)
        known = inspect.signature(type(model.model).forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"  # renamed in transformers 5.24

    def submit(self, request: Request) -> None:
        check_request(request, self._context)
        self._waiting.append(request)

    def poll(self) -> list[Completion]:
        batch = [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]
        if not batch:
            return []
        with out_of_memory("the engine", lambda: HINT):
            return self._generate(batch)

    def update_weights(self, model: Any, version: int) -> None:
        if model is not self.model and getattr(model, "model", None) is not self.model:
            load_weights(self.model, named_weights(model))
        self.version = version

    def sleep(self) -> None:
        """Has nothing to give back: the learner uses the same weights."""

    def clear(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self.clear()

    @torch.inference_mode()
    def _generate(self, requests: list[Request]) -> list[Completion]:
        from transformers import DynamicCache

        device = self.model.device
        width = max(len(r.prompt_ids) for r in requests)
        count, longest = len(requests), max(r.max_tokens for r in requests)
        ids = torch.full((count, width), self._pad, dtype=torch.long)
        mask = torch.zeros((count, width + longest), dtype=torch.long)
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[row, width - len(request.prompt_ids) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        uniforms = torch.tensor(
            np.stack([np.random.Generator(np.random.Philox(key=r.seed)).random(longest) for r in requests])
        ).to(device)
        temperature = torch.tensor([r.temperature for r in requests], dtype=torch.float32, device=device)

        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        finish = ["length"] * count
        rows = list(range(count))  # which request each row of the shrinking batch belongs to
        positions = (mask[:, :width].cumsum(-1) - 1).clamp(min=0)
        next_position = mask[:, :width].sum(-1)
        cache = DynamicCache()
        for step in range(longest):
            hidden = self.model.model(
                input_ids=ids,
                attention_mask=mask[:, : width + step],
                position_ids=positions,
                use_cache=True,
                **{self._cache_argument: cache},
            ).last_hidden_state[:, -1]
            chosen, chosen_log_probs = sample(self.model.lm_head(hidden).float(), temperature, uniforms[:, step])
            alive = []
            for row, (token, log_prob) in enumerate(zip(chosen.tolist(), chosen_log_probs.tolist(), strict=True)):
                owner = rows[row]
                if len(tokens[owner]) < requests[owner].max_tokens and finish[owner] == "length":
                    tokens[owner].append(token)
                    log_probs[owner].append(log_prob)
                    if token == self._end:
                        finish[owner] = "stop"
                    elif len(tokens[owner]) < requests[owner].max_tokens:
                        alive.append(row)
            if not alive:
                break
            ids, positions, next_position = chosen[:, None], next_position[:, None], next_position + 1
            if len(alive) <= 0.75 * len(rows):
                keep = torch.tensor(alive, device=device)
                cache.batch_select_indices(keep)
                ids, positions, mask, uniforms = ids[keep], positions[keep], mask[keep], uniforms[keep]
                next_position, temperature = next_position[keep], temperature[keep]
                rows = [rows[row] for row in alive]
            mask[:, width + step] = 1
        return [Completion(r.id, tokens[i], log_probs[i], finish[i], self.version) for i, r in enumerate(requests)]


def sample(logits: torch.Tensor, temperature: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse-CDF sampling: tokens (rows,) int64 and their log-probabilities (rows,) float32.

    logits (rows, vocabulary) float32, temperature (rows,) float32, uniform (rows,) float64 in [0, 1).
    Rows with temperature 0 take the most likely token. Raises CheckpointError on logits that are not finite.
    """
    if not torch.isfinite(logits).all():
        raise CheckpointError(
            "the model returns logits that are not finite", "check the checkpoint, or use dtype float32"
        )
    greedy = temperature == 0
    scaled = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
    cumulative = scaled.double().exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens, scaled.gather(-1, tokens[:, None])[:, 0]
