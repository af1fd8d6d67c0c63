"""Weights from the learner's GPUs to vLLM's through vLLM's own transfer API, without a copy in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Offer:
    """Weights that a replica is to fetch, in the order in which they come.

    handles: with `ipc`, for each weight what another process on the same GPU opens it by, under the GPU's id; None
        with `nccl`, where they are broadcast.
    """

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    handles: list[dict[str, tuple[Any, ...]]] | None = None

    def update_info(self) -> dict[str, Any]:
        """The offer as vLLM's `update_weights` takes it."""
        info = {"names": self.names, "dtype_names": self.dtypes, "shapes": self.shapes}
        return info if self.handles is None else info | {"ipc_handles": self.handles}


@dataclass(frozen=True)
class Meeting:
    """Where the first learner rank (rank 0) and all workers of all replicas meet for NCCL broadcasts."""

    address: str
    port: int
    size: int

    def init_info(self, first: int) -> dict[str, Any]:
        """What vLLM's `init_weight_transfer_engine` takes; first: the rank of the replica's first worker."""
        place = {"master_address": self.address, "master_port": self.port}
        return place | {"rank_offset": first, "world_size": self.size}


def describe(weights: Iterable[tuple[str, torch.Tensor]]) -> Offer:
    """The offer of weights that will be broadcast in this order."""
    listed = [(name, dtype_name(weight), list(weight.shape)) for name, weight in weights]
    return Offer([name for name, _, _ in listed], [dtype for _, dtype, _ in listed], [shape for *_, shape in listed])


def share(weights: Iterable[tuple[str, torch.Tensor]]) -> tuple[Offer, list[torch.Tensor]]:
    """(offer to processes on this GPU, tensors): the tensors have to be kept until the weights have been fetched."""
    from torch.multiprocessing.reductions import reduce_tensor

    kept = [(name, weight.detach().contiguous()) for name, weight in weights]
    gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    described = describe(kept)
    handles = [{gpu: reduce_tensor(weight)[1]} for _, weight in kept]
    return Offer(described.names, described.dtypes, described.shapes, handles), [weight for _, weight in kept]


def join(meeting: Meeting) -> Any:
    """The NCCL group of a meeting, as its rank 0; returns when all others have come."""
    from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

    device = torch.cuda.current_device()
    return stateless_init_process_group(meeting.address, meeting.port, 0, meeting.size, device)


def broadcast(group: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    for _, weight in weights:
        group.broadcast(weight.detach().contiguous(), src=0, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()


def dtype_name(weight: torch.Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")
