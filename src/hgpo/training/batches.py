"""Rows of tokens and the micro-batches they are computed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Row:
    """One step to learn from: the prompt and response exactly as read and sampled."""

    prompt_ids: list[int]
    response_ids: list[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


PADDING = 0.05  # largest share of padding in a micro-batch of the learner


def micro_batches(
    rows: Sequence[Row], token_budget: int, padding: float = 1.0, ranks: int = 1, even: bool = False
) -> list[list[int]]:
    """Indices of `rows` in batches of similar length with at most `token_budget` tokens, padding included.

    padding: largest share of padding in a batch; of even ones, in all of them together if that can be. even: whether
    batches are as large as each other, as far as their number allows; always so with several ranks, which wait for each
    other, and their number is then a multiple of `ranks` where that can be. A row longer than the budget forms a batch
    of its own. Depends on the lengths alone (ties by index).
    """
    lengths = [len(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (lengths[i], i))
    if ranks == 1 and not even:
        return _cut(order, lengths, token_budget, padding)
    if padding_share(rows, _cut(order, lengths, token_budget, 1.0)) <= padding:
        padding = 1.0
    most = -(-len(_cut(order, lengths, token_budget, padding)) // ranks) * ranks
    low, high = 0, token_budget  # the smallest budget that needs no more batches than that makes them even
    while low < high:
        middle = (low + high) // 2
        if len(_cut(order, lengths, middle, padding)) <= most:
            high = middle
        else:
            low = middle + 1
    return _cut(order, lengths, high, padding)


def _cut(order: Sequence[int], lengths: Sequence[int], token_budget: int, padding: float) -> list[list[int]]:
    """Cuts the indices in ascending order of length into as few batches as the bounds allow."""
    batches: list[list[int]] = []
    tokens = 0  # of the last batch, without padding
    for index in order:
        width = lengths[index]  # the longest so far, as lengths ascend
        padded = width * (len(batches[-1]) + 1) if batches else 0
        if batches and padded <= token_budget and tokens + width >= (1 - padding) * padded:
            batches[-1].append(index)
            tokens += width
        else:
            batches.append([index])
            tokens = width
    return batches


def share_of(batches: Sequence[list[int]], rank: int, ranks: int) -> list[tuple[list[int], bool]]:
    """A rank's micro-batches, and whether each counts: ranks with fewer repeat one that does not."""
    own = batches[rank::ranks]
    missing = -(-len(batches) // ranks) - len(own)
    return [(indices, True) for indices in own] + [(batches[0], False)] * missing


def padding_share(rows: Sequence[Row], batches: Sequence[Sequence[int]]) -> float:
    """Share of padding among all tokens computed for these batches."""
    padded = sum(max(len(rows[i]) for i in batch) * len(batch) for batch in batches)
    return 1 - sum(len(rows[i]) for batch in batches for i in batch) / max(padded, 1)


@dataclass(frozen=True)
class Batch:
    """Right-padded tokens of some rows.

    ids, mask: (rows, width) int64. sources, targets: (response tokens,) int64, row after row: the flat position in
    `ids` whose hidden state predicts the token, and the token.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor


def make_batch(rows: Sequence[Row], pad: int, device: torch.device, least: int = 1) -> Batch:
    """least: smallest number of rows; what is missing are rows of padding."""
    lengths = np.zeros(max(len(rows), least), np.int64)
    lengths[: len(rows)] = [len(row) for row in rows]
    width = int(lengths.max())
    ids = np.full((len(lengths), width), pad, np.int64)
    sources: list[np.ndarray] = []
    for index, row in enumerate(rows):
        start, end = len(row.prompt_ids), len(row)
        ids[index, :start], ids[index, start:end] = row.prompt_ids, row.response_ids
        sources.append(np.arange(start - 1, end - 1) + index * width)
    flat = np.concatenate(sources)
    arrays = (ids, (np.arange(width) < lengths[:, None]).astype(np.int64), flat, ids.reshape(-1)[flat + 1])
    return Batch(*(to_device(array, device) for array in arrays))


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array as a tensor there. A GPU is not waited for: it may still be at what came before."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
