"""A run spread over Ray actors: learner ranks and engine replicas, on one machine or several."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray._raylet import Config as RayConfig
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hgpo.errors import ConfigError, HgpoError
from hgpo.rollout.opening import dtype_of
from hgpo.rollout.policy import load_tokenizer
from hgpo.rollout.ray_engine import EngineRecipe, PackedWeights, RayEngine, Replica, failure, last_line, pack, unpack
from hgpo.rollout.weight_transfer import Meeting, Offer, broadcast, describe, join, share
from hgpo.training.batches import Row
from hgpo.training.learner import Sample
from hgpo.training.machines import Machines, check_chat, make_critic, make_learner
from hgpo.training.plan import Plan
from hgpo.training.process_service import CONTROL, ENDING_S, STOP, control, process_service, put_back
from hgpo.training.signals import SIGNALS

START_TIMEOUT_S = 300.0
LEARNER_TIMEOUT_S = 3600.0
FAILURE_GRACE_S = 120.0  # for the other ranks to answer once one has failed


class LearnerRank:
    """One rank of the learner in a process of its own."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks

    def address(self) -> tuple[str, int]:
        """Where the ranks can meet, if this is the first of them."""
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def open(self, plan: Plan, address: tuple[str, int], checkpoint: Path | None) -> None:
        os.environ |= {"RANK": str(self._rank), "WORLD_SIZE": str(self._ranks), "LOCAL_RANK": "0"}
        os.environ |= {"MASTER_ADDR": address[0], "MASTER_PORT": str(address[1])}
        if not plan.model.gpus:
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
            torch.set_num_threads(1)
        else:
            torch.cuda.set_device(0)  # the only one that Ray lets this process see
        if plan.model.learner.kind == "deepspeed" or self._ranks > 1:
            torch.distributed.init_process_group("nccl" if plan.model.gpus else "gloo")
        self._learner, _ = make_learner(plan, checkpoint)
        self._critic: Any = make_critic(plan, self._learner, checkpoint)

    def log_probs(self, rows: Sequence[Row]) -> dict[int, np.ndarray]:
        return self._learner.share_of_log_probs(rows)

    def reference_log_probs(self, rows: Sequence[Row]) -> dict[int, np.ndarray]:
        return self._learner.share_of_reference_log_probs(rows)

    def update(self, samples: Sequence[Sample], seed: int, iteration: int) -> dict[str, float]:
        return self._learner.update(samples, seed, iteration)

    def values(self, rows: Sequence[Row]) -> dict[int, float]:
        return self._critic.share_of_values(rows)

    def update_critic(self, *arguments: Any) -> dict[str, float]:
        return self._critic.update(*arguments)

    def write_critic(self, folder: Path) -> None:
        self._critic.write_state(folder)

    def write_policy(self, folder: Path) -> None:
        self._learner.write_policy(folder)

    def write_state(self, folder: Path) -> None:
        self._learner.write_state(folder)

    def offer(self) -> Offer:
        """All weights, for a replica on the same GPU."""
        offer, self._offered = share(self._learner.named_weights())
        torch.cuda.synchronize()
        return offer

    def join(self, meeting: Meeting) -> None:
        self._group = join(meeting)

    def description(self) -> Offer:
        return describe(self._learner.named_weights())

    def broadcast(self) -> None:
        """Sends all weights from the first rank to those that joined it."""
        if self._rank == 0:
            broadcast(self._group, self._learner.named_weights())
        else:
            for _ in self._learner.named_weights():
                pass  # takes part in the gathering

    def packed_weights(self) -> PackedWeights:
        """All weights as `pack` makes them; empty on every rank but the first."""
        if self._rank == 0:
            return pack(self._learner.named_weights())
        for _ in self._learner.named_weights():
            pass  # takes part in the gathering
        return []

    def memory_gb(self) -> float:
        return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0

    def process(self) -> int:
        return os.getpid()


class LearnerGroup:
    """All ranks of the learner, with the methods of one learner.

    Raises HgpoError naming rank and phase when one dies or never answers: the run then stops, and goes on from its
    newest checkpoint when it is started again.
    """

    def __init__(self, actors: list[Any]) -> None:
        self.actors = actors
        self._order = threading.Lock()  # every rank gets the calls of several threads in the same order

    def log_probs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        return self._join(self.all("log_probs", ray.put(list(rows))), len(rows))

    def reference_log_probs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        return self._join(self.all("reference_log_probs", ray.put(list(rows))), len(rows))

    def update(self, samples: Sequence[Sample], seed: int, iteration: int) -> dict[str, float]:
        learned = self.all("update", ray.put(list(samples)), seed, iteration)[0]
        return learned | {"memory/learner_gb": max(self.all("memory_gb"))}

    def packed_weights(self) -> Any:
        """Reference to the packed weights in Ray's shared memory, where every replica reads them."""
        calls = self._calls("packed_weights")
        self._results(calls, "packed_weights")
        return calls[0]

    def offers(self) -> list[Any]:
        """References to each rank's offer of its weights."""
        calls = self._calls("offer")
        self._results(calls, "offer")
        return calls

    def meeting(self, size: int) -> Meeting:
        """A place for the first rank and others to meet, `size` of them in all."""
        address, port = ray.get(self.actors[0].address.remote(), timeout=START_TIMEOUT_S)
        return Meeting(address, port, size)

    def join(self, meeting: Meeting) -> None:
        self._results([self.actors[0].join.remote(meeting)], "join")

    def description(self) -> Offer:
        return self.all("description")[0]

    def broadcast(self) -> None:
        self.all("broadcast")

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from unpack(ray.get(self.packed_weights()))

    def write_policy(self, folder: Path) -> None:
        self.all("write_policy", folder.resolve())

    def write_state(self, folder: Path) -> None:
        self.all("write_state", folder.resolve())

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)

    def open(self, plan: Plan, checkpoint: Path | None) -> None:
        address = ray.get(self.actors[0].address.remote(), timeout=START_TIMEOUT_S)
        self.all("open", plan, address, checkpoint.resolve() if checkpoint else None)

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """What a method returns on each rank."""
        return self._results(self._calls(method, *arguments), method)

    def _calls(self, method: str, *arguments: Any) -> list[Any]:
        with self._order:
            return [getattr(actor, method).remote(*arguments) for actor in self.actors]

    def _results(self, calls: list[Any], method: str) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        waiting = {call: rank for rank, call in enumerate(calls)}
        deadline = time.monotonic() + LEARNER_TIMEOUT_S
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise HgpoError(
                    f"learner ranks {sorted(waiting.values())} have not answered for {LEARNER_TIMEOUT_S:.0f} s in "
                    f"{method}",
                    "see their logs; run the same command again to go on from the newest checkpoint",
                )
            rank = waiting.pop(ready[0])
            try:
                results[rank] = ray.get(ready[0])
            except RayActorError as error:
                raise HgpoError(
                    f"learner rank {rank} died in {method}: {last_line(error)}",
                    "run the same command again to go on from the newest checkpoint",
                ) from None
            except RayError as error:
                self._settle(list(waiting))
                raise failure(error, f"learner rank {rank} failed in {method}") from None
        return results

    def _settle(self, calls: list[Any]) -> None:
        """Lets the ranks end what one has failed in; ends them all if they do not: they may wait for that one."""
        if calls and ray.wait(calls, num_returns=len(calls), timeout=FAILURE_GRACE_S)[1]:
            self.close()

    @staticmethod
    def _join(parts: list[dict[int, np.ndarray]], count: int) -> list[np.ndarray]:
        joined = {index: values for part in parts for index, values in part.items()}
        return [joined[index] for index in range(count)]


class CriticGroup:
    """The critic on all ranks of the learner, with the methods of one critic."""

    def __init__(self, ranks: LearnerGroup) -> None:
        self._ranks = ranks

    def values(self, rows: Sequence[Row]) -> np.ndarray:
        parts = self._ranks.all("values", ray.put(list(rows)))
        joined = {index: value for part in parts for index, value in part.items()}
        return np.array([joined[index] for index in range(len(rows))], np.float32)

    def update(
        self, rows: Sequence[Row], returns: np.ndarray, old_values: np.ndarray, size: int, seed: int, iteration: int
    ) -> dict[str, float]:
        return self._ranks.all("update_critic", ray.put(list(rows)), returns, old_values, size, seed, iteration)[0]

    def write_state(self, folder: Path) -> None:
        self._ranks.all("write_critic", folder.resolve())


@contextmanager
def open_cluster(plan: Plan, checkpoint: Path | None, version: int) -> Iterator[Machines]:
    """Starts Ray, learner ranks and engine replicas as the section `placement` says; ends them all, also on failure.

    Raises ConfigError if there are fewer GPUs than placed, HgpoError if something does not start.
    """
    settings, placement, gpus = plan.model.engine, plan.model.placement, bool(plan.model.gpus)
    if placement.colocated and settings.tensor_parallel > 1:
        raise ConfigError(
            "engine.tensor_parallel needs GPUs of its own", "set placement.colocated: false or tensor_parallel: 1"
        )
    each = -(-settings.replicas // placement.learner_ranks)  # replicas beside a learner rank
    if placement.colocated and each > 1 and not (settings.cache_gb or settings.kind == "transformers"):
        raise ConfigError(
            f"{settings.replicas} engine replicas on the GPUs of {placement.learner_ranks} learner ranks need to know "
            "how much memory each may take",
            "set engine.cache_gb, lower engine.replicas, or set placement.colocated: false",
        )
    bundles = bundles_of(
        placement.learner_ranks, settings.replicas, settings.tensor_parallel, placement.colocated, gpus
    )
    with started_ray(placement.nodes, sum(bundle["CPU"] for bundle in bundles), placement.mps):
        group = placement_group(bundles, strategy="PACK")
        try:
            ray.get(group.ready(), timeout=START_TIMEOUT_S)
        except GetTimeoutError:
            there = {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
            raise ConfigError(
                f"the placement needs {len(bundles)} bundles {bundles[0]}…, but the cluster has {there}",
                "lower placement.learner_ranks or engine.replicas, or start the run with more nodes or GPUs",
            ) from None
        actors = Actors(group, gpus)
        behind = {"CUDA_MPS_CLIENT_PRIORITY": "1"} if placement.mps else None  # the engines' kernels go first
        half = 0.5 if placement.colocated else 1.0  # of a bundle, for the learner rank
        own = half / each if placement.colocated else 1.0  # for a replica
        learner = LearnerGroup(
            [
                actors.start(LearnerRank, rank, half, half, rank, placement.learner_ranks, env=behind)
                for rank in range(placement.learner_ranks)
            ]
        )
        engine = None
        try:
            learner.open(plan, checkpoint)
            tokenizer = load_tokenizer(plan.start)
            check_chat(plan, tokenizer)
            agent = plan.protocol.agent
            recipe = EngineRecipe(
                str(plan.start.resolve()),
                settings,
                dtype_of(plan.model),
                "cuda" if gpus else "cpu",
                agent.max_prompt_tokens + agent.max_response_tokens,
                -(-plan.batch // settings.replicas),
                tokenizer.eos_token_id,
                tokenizer.pad_token_id,
            )

            def start(number: int) -> Any:
                bundle = number % placement.learner_ranks if placement.colocated else placement.learner_ranks + number
                return actors.start(Replica, bundle, own, own * settings.tensor_parallel, recipe)

            engine = RayEngine(
                start, settings.replicas, recipe.context, settings.timeout_s, settings.sync, settings.tensor_parallel
            )
            engine.update_weights(learner, version)
            yield Machines(learner, engine, tokenizer, CriticGroup(learner) if plan.estimator == "ppo" else None)
        finally:
            if engine:
                engine.close()
            learner.close()
            remove_placement_group(group)


def bundles_of(ranks: int, replicas: int, tensor_parallel: int, colocated: bool, gpus: bool) -> list[dict[str, float]]:
    """Resources of each bundle: one for a learner rank, and, with GPUs of their own, one for each engine replica."""

    def bundle(count: int) -> dict[str, float]:
        return {"CPU": 1.0, "GPU": float(count)} if gpus else {"CPU": 1.0}

    if colocated:
        return [bundle(1) for _ in range(ranks)]
    return [bundle(1) for _ in range(ranks)] + [bundle(tensor_parallel) for _ in range(replicas)]


class Actors:
    """Starts actors in the bundles of a placement group. gpus: whether the bundles have any."""

    def __init__(self, group: Any, gpus: bool) -> None:
        self._group, self._gpus = group, gpus

    def start(
        self, kind: type, bundle: int, cpus: float, gpus: float, *arguments: Any, env: dict[str, str] | None = None
    ) -> Any:
        return (
            ray.remote(kind)
            .options(
                num_cpus=cpus,
                num_gpus=gpus if self._gpus else 0,
                max_restarts=0,
                runtime_env={"env_vars": env} if env else None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, bundle),
            )
            .remote(*arguments)
        )


@contextmanager
def started_ray(nodes: int, cpus: float, mps: bool = False) -> Iterator[None]:
    """A Ray cluster: the one that RAY_ADDRESS names, one of several Slurm nodes, or one in this machine.

    mps: with NVIDIA's multi-process service on its nodes. Raises ConfigError if the cluster runs already.
    """
    if mps and (ray.is_initialized() or os.environ.get("RAY_ADDRESS")):
        raise ConfigError(
            "placement.mps starts NVIDIA's multi-process service before Ray, but Ray runs already",
            f"start {CONTROL} before it on each node and set placement.mps: false",
        )
    if ray.is_initialized():
        yield
        return
    runtime = {"env_vars": {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}}
    with ExitStack() as stack:
        if mps and nodes == 1:
            with signals_kept():
                stack.enter_context(process_service())
        stack.callback(ray.shutdown)
        if os.environ.get("RAY_ADDRESS"):
            connect(runtime_env=runtime)
        elif nodes > 1:
            connect(address=stack.enter_context(slurm_cluster(nodes, mps)), runtime_env=runtime)
        else:
            connect(
                address="local",  # never a cluster that another run has started here
                runtime_env=runtime,
                include_dashboard=False,
                num_cpus=max(int(np.ceil(cpus)), os.cpu_count() or 1),
                num_gpus=torch.cuda.device_count(),
                object_store_memory=_store_bytes(),
            )
        yield


def connect(**arguments: Any) -> None:
    """`ray.init`, quietly, which keeps its hands off the signals."""
    with signals_kept():
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **arguments)


IGNORED_WITHIN = (signal.SIGUSR1, signal.SIGHUP)
IGNORING = ("sh", "-c", 'trap "" USR1 HUP; exec "$@"', "sh")  # the same for what `srun` starts on another node
NODE_ENDING_S, FORCED_S = 30.0, 10.0  # for a Ray node to end, asked and told


@contextmanager
def signals_kept() -> Iterator[None]:
    """Signals have the handlers of before when the `with` block ends: Ray takes SIGTERM for itself, and a run asked to
    stop could not save. What is started within ignores SIGUSR1, which Slurm sends to every process of a job step, and
    SIGHUP, which a terminal sends to all that was started from it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in IGNORED_WITHIN:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():  # where nothing but the default was set, Ray's own stays
            if callable(handler) or (number in IGNORED_WITHIN and handler is not None):
                signal.signal(number, handler)


@contextmanager
def slurm_cluster(nodes: int, mps: bool = False) -> Iterator[str]:
    """Starts a Ray head here and, with `srun`, a worker on every other node of the job; yields the head's address.

    mps: each with NVIDIA's multi-process service of its node.

    Raises ConfigError outside a Slurm job of that many nodes, HgpoError if the nodes do not join in time.
    """
    given = job_nodes()
    if given < nodes or not shutil.which("srun"):
        raise ConfigError(
            f"placement.nodes is {nodes}, but this is {f'a Slurm job of {given} nodes' if given else 'no Slurm job'}",
            "start it in a Slurm job with as many nodes, or name a running Ray cluster in RAY_ADDRESS",
        )
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = f"{ray.util.get_node_ip_address()}:{port}"
    within = [sys.executable, "-m", process_service.__module__] if mps and control() else []
    command = [*within, str(Path(sys.executable).parent / "ray"), "start"]
    head = [*command, "--head", f"--port={port}", "--include-dashboard=false", "--block"]
    worker = ["srun", f"--nodes={nodes - 1}", f"--ntasks={nodes - 1}", "--ntasks-per-node=1", "--overlap"]
    worker += [f"--exclude={os.environ.get('SLURMD_NODENAME', socket.gethostname())}"]
    worker += [*IGNORING, *command, f"--address={address}", "--block"]
    # A secret of this run's own: Ray would else take up what lies at home, on some of its nodes and not on others.
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {key: os.environ.get(key) for key in own}
    os.environ.update(own)
    RayConfig.initialize("")  # this process has read Ray's settings already
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with signals_kept():
        processes = [subprocess.Popen(head, **quiet)]
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _reachable(port):
            _check_started(processes, deadline, "the Ray head")
        with signals_kept():
            processes.append(subprocess.Popen(worker, env=outside_of_step(), **quiet))
        while not ray.is_initialized():  # the head answers at its port before it takes anyone in
            try:
                connect(address=address)
            except ConnectionError:
                _check_started(processes, deadline, "the Ray head")
        while sum(node["Alive"] for node in ray.nodes()) < nodes:
            _check_started(processes, deadline, f"one of {nodes} Ray nodes")
        ray.shutdown()
        yield address
    finally:
        ray.shutdown()
        for process in reversed(processes):
            process.send_signal(STOP if mps else signal.SIGTERM)
        _end(processes, NODE_ENDING_S + (ENDING_S if mps else 0.0))
        put_back(before)
        RayConfig.initialize("")


def _end(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Waits for processes that were asked to end, and makes those that do not."""
    for process in processes:
        for patience, force in ((seconds, process.terminate), (FORCED_S, process.kill)):
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                force()


def outside_of_step() -> dict[str, str]:
    """The environment without what ties `srun` to this job step: it then sees the other nodes of the job."""
    kept = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF", "SLURM_CLUSTER_NAME"}
    return {k: v for k, v in os.environ.items() if k in kept or not k.startswith(("SLURM_", "SRUN_"))}


def job_nodes() -> int:
    """The number of nodes of the Slurm job that this process is in; 0 outside of one.

    A job step of the workflow has the job's number in its environment, but not always the number of its nodes.
    """
    number, job = os.environ.get("SLURM_JOB_NUM_NODES"), os.environ.get("SLURM_JOB_ID")
    if number is None and job and shutil.which("squeue"):
        asked = subprocess.run(["squeue", "--noheader", "--jobs", job, "--format=%D"], capture_output=True, text=True)
        number = asked.stdout.strip()
    return int(number or 0)


def _reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
        return True
    except OSError:
        return False


def _check_started(processes: list[subprocess.Popen[bytes]], deadline: float, what: str) -> None:
    ended = [process for process in processes if process.poll() is not None]
    if ended or time.monotonic() > deadline:
        how = f"ended with code {ended[0].returncode}" if ended else f"did not start within {START_TIMEOUT_S:.0f} s"
        raise HgpoError(f"{what} {how}", "look at the job's log; check that the nodes reach each other")
    time.sleep(0.5)


def _store_bytes() -> int:
    """Shared memory for Ray: a fifth of what is free, at least 100 MB."""
    return max(100 << 20, int(0.2 * shutil.disk_usage("/dev/shm").free))
