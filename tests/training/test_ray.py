"""Real Ray on this machine: engine replicas and learner ranks in processes of their own, and their deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

ray = pytest.importorskip("ray")

from experiment import BODY, Experiment  # noqa: E402

from hgpo.cli import cli  # noqa: E402
from hgpo.config.machinery import Engine  # noqa: E402
from hgpo.errors import ConfigError, HgpoError, Interrupted  # noqa: E402
from hgpo.rollout import ray_engine  # noqa: E402
from hgpo.rollout.engines import Request  # noqa: E402
from hgpo.rollout.policy import save_policy  # noqa: E402
from hgpo.rollout.ray_engine import EngineRecipe, RayEngine, Replica, checkpoint_in_memory, pack, unpack  # noqa: E402
from hgpo.rollout.transformers_engine import TransformersEngine  # noqa: E402
from hgpo.rollout.weight_transfer import Offer  # noqa: E402
from hgpo.training import cluster  # noqa: E402
from hgpo.training.signals import StopSignal  # noqa: E402

SPREAD = {"placement": {"kind": "ray", "colocated": False}, "engine": {"replicas": 1}}


@pytest.fixture(scope="module", autouse=True)
def running_ray():
    os.environ |= {"RAY_worker_niceness": "0"}
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


def kill(actor: Any) -> None:
    """Kills an actor and waits until it is dead: until then it may still answer."""
    ray.kill(actor)
    for _ in range(600):
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=1)
        except ray.exceptions.RayActorError:
            return
        except ray.exceptions.GetTimeoutError:
            pass
        time.sleep(0.05)
    raise AssertionError("the actor outlived its killing")


def test_replicas_complete_what_one_engine_completes_even_if_one_dies(policy, tmp_path, monkeypatch):
    model, tokenizer = policy
    save_policy(model, tokenizer, tmp_path / "start")
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    recipe = EngineRecipe(str(tmp_path / "start"), Engine(), "float32", "cpu", 400, 8, end, pad)
    engine = RayEngine(lambda _: ray.remote(Replica).options(num_cpus=0.5).remote(recipe), 2, 400, 120.0)
    local = TransformersEngine(model, end, pad)
    engine.update_weights(model, 4)
    wanted = [Request(n, tokenizer.encode("goal: open the door\n" * (1 + n % 3)), n, 10, 1.0) for n in range(9)]
    for request in wanted:
        local.submit(request)
        engine.submit(request)
    expected = {c.id: c for c in local.poll()}
    kill(engine._slots[1].actor)
    done: dict = {}
    while len(done) < len(wanted):
        done |= {c.id: c for c in engine.poll()}
    assert {n: c.token_ids for n, c in done.items()} == {n: c.token_ids for n, c in expected.items()}
    assert {c.version for c in done.values()} == {4}
    monkeypatch.setattr(ray_engine, "RESTARTS", 1)
    kill(engine._slots[1].actor)
    engine.submit(Request(1, wanted[0].prompt_ids, 0, 1))
    with pytest.raises(HgpoError, match="engine replica 1 died 2 times"):
        while True:
            engine.poll()
    engine.close()


def test_weights_travel_unchanged(policy, tmp_path):
    import torch

    model, tokenizer = policy
    save_policy(model, tokenizer, tmp_path)
    mixed = [(n, p.to(torch.bfloat16) if k % 2 else p) for k, (n, p) in enumerate(model.named_parameters())]
    packed = pack(iter(mixed))
    for (name, weight), (again, other) in zip(mixed, unpack(packed), strict=True):
        assert name == again and weight.dtype == other.dtype and torch.equal(weight, other)
    with checkpoint_in_memory(packed, str(tmp_path)) as folder:
        assert (folder / "model.safetensors").stat().st_size > 0 and (folder / "config.json").is_file()
    assert not folder.exists()


class Stub:
    """An actor in the place of a replica or a learner rank."""

    def __init__(self, rank: int, fault: str = "") -> None:
        if fault == "start":
            raise HgpoError("vLLM could not be started: no room", "lower it")
        self.rank, self.fault, self.got = rank, fault, []

    def update_weights(self, weights, version) -> None:
        self.got.append((weights, version))

    def received(self) -> list:
        return self.got

    def offer(self) -> Offer:
        return Offer([f"weight of rank {self.rank}"], ["float32"], [[1]], [{"gpu": (self.rank,)}])

    def sleep(self) -> None:
        if self.fault == "silent":
            time.sleep(60)

    log_probs = lambda self, rows: self.sleep()  # noqa: E731


def start_stub(number: int, fault: str = "") -> Any:
    return ray.remote(Stub).options(num_cpus=0.1).remote(number, fault)


def test_with_ipc_each_replica_fetches_from_the_rank_beside_it_even_when_started_again():
    learner = cluster.LearnerGroup([start_stub(rank) for rank in range(2)])
    engine = RayEngine(start_stub, 2, 400, 60.0, sync="ipc")
    engine.update_weights(learner, 3)
    kill(engine._slots[1].actor)
    engine.sleep()
    for number, slot in enumerate(engine._slots):
        [(offer, version)] = ray.get(slot.actor.received.remote())
        assert offer.names == [f"weight of rank {number}"] and version == 3
        assert offer.update_info()["ipc_handles"] == [{"gpu": (number,)}]
    engine.close()
    learner.close()


def test_a_replica_that_cannot_start_is_not_tried_again():
    engine = RayEngine(lambda number: start_stub(number, "start"), 1, 400, 60.0)
    with pytest.raises(
        HgpoError, match="engine replica 0 could not be started: .*vLLM could not be started: no room mend: lower it"
    ):
        engine.sleep()
    engine.close()


def test_ranks_and_replicas_that_never_answer_are_given_up(monkeypatch):
    monkeypatch.setattr(cluster, "LEARNER_TIMEOUT_S", 1.0)
    learner = cluster.LearnerGroup([start_stub(0), start_stub(1, "silent")])
    ray.get([actor.received.remote() for actor in learner.actors])
    with pytest.raises(HgpoError, match=r"learner ranks \[1\] have not answered for 1 s in log_probs"):
        learner.log_probs([])
    learner.close()
    engine = RayEngine(lambda number: start_stub(number, "silent"), 1, 400, 1.0)
    with pytest.raises(HgpoError, match="engine replica 0 did not sleep") as caught:
        engine.sleep()
    assert "engine.timeout_s" in str(caught.value)
    engine.close()


def test_a_spread_run_survives_the_death_of_a_replica(experiment, unbroken, monkeypatch):
    real, killed = RayEngine.poll, []

    def poll(engine):
        if engine.version == 1 and not killed:
            killed.append(engine)
            ray.kill(engine._slots[0].actor)
        return real(engine)

    monkeypatch.setattr(RayEngine, "poll", poll)
    experiment.train(model=SPREAD)
    assert killed
    lines, expected = experiment.metrics(), unbroken.metrics()
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    for key in ("episodes", "success", "steps"):
        assert [line[key] for line in lines] == [line[key] for line in expected]
    assert all(line["sync_gap"] < 1e-3 for line in lines)
    assert np.isfinite([line["loss/policy"] for line in lines]).all()


def test_several_replicas_beside_one_learner_rank_play_the_same_episodes(experiment, unbroken):
    experiment.train(model={"placement": {"kind": "ray"}, "engine": {"replicas": 3}})
    lines, expected = experiment.metrics(), unbroken.metrics()
    for key in ("episodes", "success", "steps"):
        assert [line[key] for line in lines] == [line[key] for line in expected]
    assert all(line["sync_gap"] < 1e-3 for line in lines)


def test_two_plain_learner_ranks_learn_what_one_learns_and_go_on(experiment, prepared, tmp_path):
    (tmp_path / "alone").mkdir()
    alone = prepared.other(tmp_path / "alone")
    moving = {"entropy_coefficient": 0.05}  # no episode is won: without it the gradient is noise
    alone.train(iterations=3, **moving)
    model = {"placement": {"kind": "ray", "learner_ranks": 2, "colocated": False}, "engine": {"replicas": 1}}
    experiment.train(model=model, iterations=2, **moving)
    experiment.train(model=model, iterations=3, allow=True, **moving)
    lines, expected = experiment.metrics(), alone.metrics()
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    for line, other in zip(lines, expected, strict=True):
        assert line["episodes"] == other["episodes"] and line["steps"] == other["steps"]
        assert line["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-2)
        assert line["loss/entropy"] == pytest.approx(other["loss/entropy"], rel=1e-3)
    assert lines[2]["loss/entropy"] > lines[0]["loss/entropy"]


def beside(overlap: bool, **learner: Any) -> dict[str, Any]:
    """Two learner ranks that compute scores beside the rollout or after it."""
    placement = {"kind": "ray", "learner_ranks": 2, "colocated": False, "overlap": overlap}
    return {"placement": placement, "engine": {"replicas": 1}, "learner": learner}


# ZeRO-3 leaves small weights whole
WIDE = {"embedded": BODY["models"]["tiny"]["embedded"] | {"intermediate_size": 2048}}
ZERO_3 = {"kind": "deepspeed", "zero_stage": 3}


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Experiment:
    """As `prepared`, with a model of which ZeRO-3 shards something."""
    pytest.importorskip("deepspeed")
    experiment = Experiment(tmp_path_factory.mktemp("wide"))
    for command in experiment.preparation(model=WIDE):
        cli.main(command, standalone_mode=False)
    return experiment


@pytest.mark.parametrize(("method", "learner"), [("ppo", {}), ("hgpo", ZERO_3)], ids=["ppo", "zero-3"])
def test_scores_beside_the_rollout_are_those_of_after_it(request, tmp_path, method, learner):
    start = request.getfixturevalue("wide" if learner else "prepared")
    settings = {"method": method, "iterations": 2, "entropy_coefficient": 0.05, "token_budget": 350}
    runs = []
    for overlap in (False, True):
        (tmp_path / str(overlap)).mkdir()
        runs.append(start.other(tmp_path / str(overlap)))
        runs[-1].train(model=(WIDE if learner else {}) | beside(overlap, **learner), **settings)
    after, lines = (run.metrics(method) for run in runs)
    assert len(lines) == 2
    for line, other in zip(lines, after, strict=True):
        assert line == pytest.approx(other, rel=1e-3, abs=2e-5)
    whole = (runs[1].run_folder(method) / "metrics.jsonl").read_text().splitlines()
    assert all("time/scores" in line for line in whole)


def test_a_rank_that_fails_while_others_wait_for_it_ends_the_run_with_its_error(wide, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "FAILURE_GRACE_S", 5.0)
    experiment, real, failed = wide.other(tmp_path), cluster.LearnerGroup.log_probs, []

    def log_probs(group, rows):
        if failed or not experiment.checkpoints():
            return real(group, rows)
        failed.append(group)
        calls = [actor.log_probs.remote(given) for actor, given in zip(group.actors, [None, rows], strict=True)]
        return group._join(group._results(calls, "log_probs"), len(rows))

    monkeypatch.setattr(cluster.LearnerGroup, "log_probs", log_probs)
    begin = time.monotonic()
    with pytest.raises(HgpoError, match="learner rank 0 failed in log_probs"):
        experiment.train(model=WIDE | beside(True, **ZERO_3), token_budget=350)
    assert failed and time.monotonic() - begin < 120
    monkeypatch.undo()
    experiment.train(model=WIDE | beside(True, **ZERO_3), token_budget=350)
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1, 2]


def test_the_death_of_a_learner_beside_the_rollout_stops_the_run_which_then_goes_on(experiment, monkeypatch):
    real, killed = cluster.LearnerGroup.reference_log_probs, []

    def reference_log_probs(group, rows):
        if experiment.checkpoints() and not killed:
            killed.append(group)
            os.kill(ray.get(group.actors[1].process.remote()), signal.SIGKILL)
        return real(group, rows)

    monkeypatch.setattr(cluster.LearnerGroup, "reference_log_probs", reference_log_probs)
    with pytest.raises(HgpoError, match="learner rank 1 died in"):
        experiment.train(model=beside(True))
    assert killed and experiment.checkpoints() == ["iteration-000001"]
    experiment.train(model=beside(True))
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1, 2]


def test_a_run_asked_to_stop_while_it_scores_saves(experiment, monkeypatch):
    stopped = StopSignal()
    real = cluster.LearnerGroup.reference_log_probs

    def reference_log_probs(group, rows):
        if experiment.checkpoints():
            stopped.received = "SIGTERM"
        return real(group, rows)

    monkeypatch.setattr(cluster.LearnerGroup, "reference_log_probs", reference_log_probs)
    with pytest.raises(Interrupted):
        experiment.train(model=beside(True), stopped=stopped)
    assert experiment.checkpoints() == ["iteration-000001"]
    experiment.train(model=beside(True))
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1, 2]


def test_the_death_of_a_learner_stops_the_run_which_then_goes_on(experiment, monkeypatch):
    real = cluster.LearnerGroup.update

    def update(group, samples, seed, iteration):
        if iteration == 1:
            os.kill(ray.get(group.actors[0].process.remote()), signal.SIGKILL)
        return real(group, samples, seed, iteration)

    monkeypatch.setattr(cluster.LearnerGroup, "update", update)
    with pytest.raises(HgpoError, match="learner rank 0 died in update") as caught:
        experiment.train(model=SPREAD)
    assert "run the same command again" in str(caught.value)
    assert experiment.checkpoints() == ["iteration-000001"]
    monkeypatch.undo()
    experiment.train(model=SPREAD)
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_spread_run_that_is_asked_to_stop_saves(experiment, number):
    """SIGUSR1 comes to all of its processes, as from Slurm."""
    process = subprocess.Popen(experiment.command(model=SPREAD), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not experiment.checkpoints():
        time.sleep(0.01)
    others = psutil.Process(process.pid).children(recursive=True) if number == signal.SIGUSR1 else []
    for asked in (*others, process):
        asked.send_signal(number)
    _, message = process.communicate()
    assert process.returncode == 75, message
    assert f"stopped by {number.name} after" in message and "run the same command again" in message
    experiment.train(model=SPREAD)
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"placement": {"kind": "ray"}, "engine": {"tensor_parallel": 2}}, "tensor_parallel needs GPUs of its own"),
        ({"placement": {"kind": "ray"}, "engine": {"kind": "vllm", "replicas": 2}}, "need to know how much memory"),
    ],
)
def test_placements_that_cannot_be_are_refused(experiment, model, message):
    with pytest.raises(ConfigError, match=message):
        experiment.train(model=model)


def test_a_placement_larger_than_the_cluster_is_one_message(experiment, monkeypatch):
    monkeypatch.setattr(cluster, "START_TIMEOUT_S", 3.0)
    with pytest.raises(ConfigError, match="the placement needs 6 bundles .* the cluster has"):
        experiment.train(model={"placement": {"kind": "ray", "colocated": False}, "engine": {"replicas": 5}})


def test_several_nodes_need_a_slurm_job(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    with pytest.raises(ConfigError, match="placement.nodes is 2, but this is no Slurm job"), cluster.slurm_cluster(2):
        pass


SEVERAL_NODES = """
import ray, signal
from hgpo.training import cluster
from hgpo.training.signals import SIGNALS, StopSignal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
with StopSignal(), cluster.started_ray(2, 1):
    print("nodes", sum(node["Alive"] for node in ray.nodes()))
    print("handlers", *{signal.getsignal(number).__name__ for number in SIGNALS})
"""


def test_ray_nodes_are_started_by_srun_and_ended(tmp_path):
    """With a stand-in for srun that starts its command on this machine."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nwhile case "$1" in -*) true;; *) false;; esac; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "2"}
    environment.pop("RAY_ADDRESS", None)
    source = str(Path(cluster.__file__).parents[2])
    environment["PYTHONPATH"] = source
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL_NODES], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "nodes 2\nhandlers _note\n" in done.stdout, done.stderr


WITH_SERVICE = """
import os, ray
from hgpo.training.cluster import Actors, started_ray
from ray.util.placement_group import placement_group

class Client:
    def raylet(self):
        return os.getppid()
    def sees(self):
        return [os.environ.get(key) for key in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_CLIENT_PRIORITY")]

with started_ray(1, 2, mps=True):
    actors = Actors(placement_group([{"CPU": 1}]), False)
    clients = [actors.start(Client, 0, 0.5, 0, env=env) for env in ({"CUDA_MPS_CLIENT_PRIORITY": "1"}, None)]
    folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
    print(ray.get([client.sees.remote() for client in clients]) == [[folder, "1"], [folder, None]])
    open(os.environ["NOTED"] + ".raylet", "w").write(str(ray.get(clients[0].raylet.remote())))
"""


def test_processes_that_share_a_gpu_do_so_through_the_service_of_their_run(tmp_path):
    program = tmp_path / "nvidia-cuda-mps-control"
    runs = "kill -0 $(cat $NOTED.raylet) && echo Ray runs >> $NOTED"
    program.write_text(f'#!/bin/sh\n[ -n "$1" ] || {{ {runs}; }}\necho "${{1:-$(cat)}}" >> $NOTED\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "NOTED": str(tmp_path / "noted")}
    done = subprocess.run([sys.executable, "-c", WITH_SERVICE], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True"], done.stderr
    assert (tmp_path / "noted").read_text().splitlines() == ["-d", "quit -t 20"]
    assert int((tmp_path / "noted.raylet").read_text()) > 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_service_is_not_started_for_a_ray_that_runs_already(monkeypatch, elsewhere):
    if elsewhere:
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="before Ray, but Ray runs already"), cluster.started_ray(1, 1, mps=True):
        pytest.fail("it would not be used")
