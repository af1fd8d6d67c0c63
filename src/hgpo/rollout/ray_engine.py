"""Engine replicas as Ray actors behind the one engine interface."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError

from hgpo.config.machinery import Engine as Settings
from hgpo.errors import HgpoError
from hgpo.rollout.engine_thread import LONGEST_POLL_S, EngineThread
from hgpo.rollout.engines import Completion, Engine, Request, check_request
from hgpo.rollout.policy import load_policy, load_weights, named_weights
from hgpo.rollout.transformers_engine import TransformersEngine
from hgpo.rollout.weight_transfer import Meeting, Offer

PackedWeights = list[tuple[str, str, list[int], np.ndarray]]  # name, dtype, shape, bytes

RESTARTS = 3


@dataclass(frozen=True)
class EngineRecipe:
    """What an engine replica is made from. context, at_once: see `VllmEngine`; both tokens are ids."""

    folder: str
    settings: Settings
    dtype: str
    device: str
    context: int
    at_once: int
    end_token: int
    pad_token: int

    def make(self) -> Engine:
        if self.settings.kind == "vllm":
            from hgpo.rollout.vllm_engine import VllmEngine

            return VllmEngine(
                self.folder, self.settings, self.dtype, self.context, self.at_once, self.end_token
            )  # fmt: skip
        model, _ = load_policy(self.folder, self.dtype, device=self.device)
        return TransformersEngine(model, self.end_token, self.pad_token, self.at_once)


class Replica:
    """An engine in a process of its own."""

    def __init__(self, recipe: EngineRecipe) -> None:
        torch.set_num_threads(1) if recipe.device == "cpu" else None
        self._recipe = recipe
        self._engine = EngineThread(recipe.make, recipe.context)

    def exchange(self, requests: list[Request]) -> tuple[list[Completion], float]:
        """Takes new requests in; gives back what is completed, perhaps nothing yet, and for how many seconds the
        engine has worked since it was made."""
        for request in requests:
            self._engine.submit(request)
        return self._engine.poll(), self._engine.busy_s

    def update_weights(self, weights: PackedWeights | Offer, version: int) -> None:
        """weights: as `pack` makes them, or an offer for vLLM to fetch. An engine of several workers gets packed
        weights as a checkpoint in shared memory."""
        self._engine.call(lambda: self._update_weights(self._engine.inner, weights, version))

    def _update_weights(self, engine: Engine, weights: PackedWeights | Offer, version: int) -> None:
        if isinstance(weights, Offer):
            engine.update_weights(weights, version)
        elif isinstance(engine, TransformersEngine):
            load_weights(engine.model, unpack(weights))
            engine.update_weights(engine.model, version)
        elif self._recipe.settings.tensor_parallel > 1:
            with checkpoint_in_memory(weights, self._recipe.folder) as folder:
                engine.update_weights(folder, version)
        else:
            engine.update_weights(Packed(weights), version)

    def join(self, meeting: Meeting, first: int) -> None:
        """See `VllmEngine.join`."""
        self._engine.join(meeting, first)

    def sleep(self) -> None:
        self._engine.sleep()

    def clear(self) -> None:
        self._engine.clear()


@dataclass
class _Slot:
    """A place for one replica: its actor, what it has to complete, its call under way, how long it worked, and the
    arguments of its last weight update."""

    actor: Any
    wanted: dict[int, Request] = field(default_factory=dict)
    unsent: list[Request] = field(default_factory=list)
    call: Any = None
    restarts: int = 0
    busy_s: float = 0.0
    updated: tuple[Any, int] | None = None


class RayEngine:
    """Requests are dealt out by their number, so that an episode stays with the replica that has its prompts cached.

    start: makes the actor of replica number n. A replica that dies is started again and gets the current weights and
    all its open requests once more; as completions follow from their requests alone, nothing else changes.
    sync, workers: how weights reach the replicas (`hgpo.config.machinery.Engine`), and how many GPUs each has.
    Raises HgpoError when a replica died more than three times, or at all with `nccl`, or refuses a request.
    """

    static = False

    def __init__(
        self,
        start: Callable[[int], Any],
        replicas: int,
        context: int,
        timeout_s: float,
        sync: str = "reload",
        workers: int = 1,
    ) -> None:
        self.version, self.sync, self._workers, self._met = 0, sync, workers, False
        self._start, self._context, self._timeout_s = start, context, timeout_s
        self._slots = [_Slot(start(number)) for number in range(replicas)]

    @property
    def busy_s(self) -> float:
        """Seconds in which the replicas of now have worked on completions, on average."""
        return sum(slot.busy_s for slot in self._slots) / len(self._slots)

    def submit(self, request: Request) -> None:
        check_request(request, self._context)
        slot = self._slots[request.id % len(self._slots)]
        slot.wanted[request.id] = request
        slot.unsent.append(request)

    def poll(self) -> list[Completion]:
        for slot in self._slots:
            if slot.call is None and slot.wanted:
                slot.call, slot.unsent = slot.actor.exchange.remote(slot.unsent), []
        calls = {slot.call: number for number, slot in enumerate(self._slots) if slot.call is not None}
        if not calls:
            return []
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=LONGEST_POLL_S)
        completions: list[Completion] = []
        for call in ready:
            slot = self._slots[calls[call]]
            slot.call = None
            try:
                done, slot.busy_s = ray.get(call)
            except RayActorError as error:
                self._restart(calls[call], error)
                continue
            except RayError as error:
                raise failure(error, f"engine replica {calls[call]} failed") from None
            for completion in done:
                slot.wanted.pop(completion.id)
            completions += done
        return completions

    def update_weights(self, model: Any, version: int) -> None:
        """model: a policy, or learner ranks (`hgpo.training.cluster.LearnerGroup`)."""
        self.version = version
        if self.sync == "nccl":
            self._broadcast(model)
            return
        for slot in self._slots:
            slot.updated = None  # shared memory never holds two versions
        if self.sync == "ipc":
            weights = model.offers()
        elif hasattr(model, "packed_weights"):  # in Ray's shared memory already
            weights = [model.packed_weights()]
        else:
            weights = [ray.put(pack(named_weights(model)))]
        calls = []
        for number, slot in enumerate(self._slots):  # replicas beyond the ranks share the GPUs in the same order
            slot.updated = own = (weights[number % len(weights)], version)
            calls.append(slot.actor.update_weights.remote(*own))
        self._finish("update weights", calls)

    def _broadcast(self, learner: Any) -> None:
        if not self._met:
            meeting = learner.meeting(1 + self._workers * len(self._slots))
            firsts = [1 + self._workers * number for number in range(len(self._slots))]
            calls = [slot.actor.join.remote(meeting, first) for slot, first in zip(self._slots, firsts, strict=True)]
            learner.join(meeting)
            self._finish("join the learner", calls)
            self._met = True
        offer = ray.put(learner.description())
        calls = [slot.actor.update_weights.remote(offer, self.version) for slot in self._slots]
        learner.broadcast()
        self._finish("update weights", calls)

    def sleep(self) -> None:
        self._everywhere("sleep")

    def clear(self) -> None:
        for slot in self._slots:
            slot.wanted, slot.unsent, slot.call = {}, [], None
        self._everywhere("clear")

    def close(self) -> None:
        for slot in self._slots:
            ray.kill(slot.actor)

    def _everywhere(self, method: str) -> None:
        self._finish(method, [getattr(slot.actor, method).remote() for slot in self._slots])

    def _finish(self, what: str, calls: list[Any]) -> None:
        """Waits for one call of each replica."""
        for number, call in enumerate(calls):
            try:
                ray.get(call, timeout=self._timeout_s)
            except RayActorError as error:
                self._restart(number, error)  # a new replica is brought to the current weights
            except RayError as error:
                raise failure(error, f"engine replica {number} did not {what}") from None

    def _restart(self, number: int, error: RayActorError) -> None:
        slot = self._slots[number]
        if error.actor_init_failed:
            raise HgpoError(f"engine replica {number} could not be started: {last_line(error)}", "see its whole log")
        slot.restarts += 1
        if slot.restarts > RESTARTS or self.sync == "nccl":  # a broadcast's group cannot be joined again
            raise HgpoError(
                f"engine replica {number} died {slot.restarts} times",
                "see its log (out of memory?); run the same command again to go on from the newest checkpoint",
            )
        slot.actor, slot.call, slot.unsent = self._start(number), None, list(slot.wanted.values())
        slot.busy_s = 0.0
        if slot.updated:
            slot.actor.update_weights.remote(*slot.updated)


def pack(weights: Iterator[tuple[str, torch.Tensor]]) -> PackedWeights:
    """(name, dtype, shape, bytes) of each weight: Ray shares such arrays between processes without copying."""
    packed = []
    for name, weight in weights:
        flat = weight.detach().cpu().contiguous().view(-1).view(torch.uint8)
        packed.append((name, str(weight.dtype).removeprefix("torch."), list(weight.shape), flat.numpy()))
    return packed


def unpack(packed: PackedWeights) -> Iterator[tuple[str, torch.Tensor]]:
    for name, dtype, shape, flat in packed:
        yield name, torch.from_numpy(flat).view(getattr(torch, dtype)).view(shape)


@dataclass(frozen=True)
class Packed:
    """Packed weights as a source of weights."""

    weights: PackedWeights

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return unpack(self.weights)


class checkpoint_in_memory:  # noqa: N801 (used as a function)
    """A checkpoint folder with these weights in shared memory, gone at the end of the `with` block."""

    def __init__(self, weights: PackedWeights, like: str) -> None:
        self._weights, self._like = weights, Path(like)

    def __enter__(self) -> Path:
        from safetensors.torch import save_file

        self._folder = Path(tempfile.mkdtemp(prefix="hgpo-weights-", dir="/dev/shm"))
        for path in self._like.glob("*.json"):
            if "index" not in path.name:
                shutil.copy(path, self._folder)
        save_file(
            {n: w.clone() for n, w in unpack(self._weights)}, self._folder / "model.safetensors", {"format": "pt"}
        )
        return self._folder

    def __exit__(self, *raised: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def failure(error: RayError, what: str) -> HgpoError:
    """The actor's own message, if it had one; else `what` and the last line of Ray's."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, HgpoError):
        return HgpoError(f"{what}: {cause.message}", cause.hint)
    return HgpoError(f"{what}: {last_line(error)}", "see its log; raise engine.timeout_s if it is only slow")


def last_line(error: BaseException) -> str:
    """The last line of an error's text, where Ray puts the cause, and the mend that follows it if it is ours."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[-2:]) if lines[-1].startswith("mend:") else lines[-1]
