"""The losses, token by token; means are taken by the learner over all tokens of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint

from hgpo.training.batches import Batch

CHUNK = 4096  # response positions projected to the vocabulary at once
LARGEST_LOG_RATIO = 20.0

Entropy = Literal["no", "value", "gradient"]
Measure = Callable[[torch.Tensor, torch.Tensor, float, Entropy], tuple[torch.Tensor, torch.Tensor]]


def measure_logits(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, entropy: Entropy
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities of the targets, entropies), each (tokens,) float32, of logits (tokens, vocabulary).

    entropy: `gradient` if it is part of the loss, `value` if it is looked at only, `no` for zeros in its place.
    """
    logits = logits.float() / temperature
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    if entropy == "no":
        return chosen, torch.zeros_like(chosen)
    if entropy == "value":
        logits, normaliser = logits.detach(), normaliser.detach()
    return chosen, normaliser - (logits.softmax(-1) * logits).sum(-1)


def response_log_probs(
    model: Any, batch: Batch, temperature: float, entropy: Entropy = "value", measure: Measure = measure_logits
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, entropies) of the response tokens, each (response tokens,) float32.

    Only response positions are projected to the vocabulary, `CHUNK` at a time, so that logits never take much memory.
    They are divided by the sampling temperature, to be of the distribution the tokens were sampled from. Padding is
    on the right, where causal attention never looks, so no mask is needed.

    entropy: see `measure_logits`. measure: that, or what it was compiled to.
    """

    def score(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return measure(model.lm_head(hidden), targets, temperature, entropy)

    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state.flatten(0, 1)[batch.sources]
    if len(hidden) <= CHUNK:
        return score(hidden, batch.targets)
    parts = [
        checkpoint(score, part, targets, use_reentrant=False)
        for part, targets in zip(hidden.split(CHUNK), batch.targets.split(CHUNK), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def imitation_loss(model: Any, batch: Batch, prompt_weight: float) -> torch.Tensor:
    """Weighted mean cross-entropy, a scalar: response tokens weigh 1, prompt tokens `prompt_weight`, padding 0."""
    if not prompt_weight:
        return -response_log_probs(model, batch, 1.0, "no")[0].mean()
    hidden = model.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
    targets = torch.cat([batch.ids[:, 1:], batch.ids[:, :1]], dim=1)  # the last column predicts nothing
    weights = prompt_weight * torch.cat([batch.mask[:, 1:], torch.zeros_like(batch.mask[:, :1])], dim=1).float()
    weights.view(-1)[batch.sources] = 1.0
    kept = weights.flatten().nonzero()[:, 0]
    logits = model.lm_head(hidden.flatten(0, 1)[kept]).float()
    losses = torch.nn.functional.cross_entropy(logits, targets.flatten()[kept], reduction="none")
    return (losses * weights.flatten()[kept]).sum() / weights.sum()


def clipped_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    clip: float,
    clip_high: float | None = None,
    lengths: torch.Tensor | None = None,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, clipped) per token: PPO's clipped surrogate (Schulman et al. 2017, eq. 7), and where the clip acts.

    clip_high: upper range, if not `clip` (DAPO, Yu et al. 2025, section 3.1). lengths: of the responses, int64; given,
    each token's ratio is that of its whole response, the geometric mean (GSPO, Zheng et al. 2025, eq. 7). dual_clip:
    where the advantage is negative, the loss is at most that many times its size (Ye et al. 2020, eq. 5).
    """
    log_ratio = log_probs - old_log_probs
    if lengths is not None:
        log_ratio = response_mean(log_ratio, lengths)
    ratio = log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    bounded = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    loss = -torch.minimum(ratio * advantages, bounded * advantages)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss, (ratio * advantages > bounded * advantages)


def response_mean(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Each response's mean, at each of its tokens. values: (response tokens,), lengths: (responses,) int64."""
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    sums = torch.zeros(len(lengths), dtype=values.dtype, device=values.device).index_add(0, owner, values)
    return (sums / lengths)[owner]


def k3(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """The low-variance KL estimate k3 = r - log r - 1, r = reference / policy, per token (Schulman 2020).

    A log-ratio beyond 20 counts as 20, so that it stays finite.
    """
    difference = (reference_log_probs - log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return difference.exp() - difference - 1


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Half the squared error per step; with `clip` the larger one of it and that of the value moved at most so far."""
    error = (values - returns) ** 2
    if clip is not None:
        bounded = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (bounded - returns) ** 2)
    return error / 2
