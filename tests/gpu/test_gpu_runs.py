"""Whole runs on real GPUs, one for each way to train: two iterations, then the same command for a third.

Run by a lab on its GPU machine before a run of days: `make test-gpu`. See `gpu.py` for how, and for a trial on CPUs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from experiment import Experiment
from gpu import GAP, ON_CPU, deepspeed, model, needs_gpus, ray, sleeping, vllm
from safetensors.torch import load_file

pytestmark = needs_gpus
Lines = list[dict[str, Any]]
Check = Callable[[Experiment, Lines], None]
MOVING = {"entropy_coefficient": 0.01}  # a gradient that is no noise even where all advantages are 0
CRITIC = {"learning_rate": 1e-2, "epochs": 2}


def finished(experiment: Experiment, method: str = "hgpo") -> dict[str, Any]:
    return json.loads((experiment.run_folder(method) / "finished.json").read_text())


def changed(experiment: Experiment, method: str = "hgpo") -> set[str]:
    """The weights that are not those of the start."""
    start = load_file(experiment.folder / "results/shop/start/tiny/webshop/K1/model.safetensors")
    final = load_file(experiment.run_folder(method) / "final/model.safetensors")
    assert start.keys() == final.keys()
    assert all(weight.isfinite().all() for weight in final.values())
    return {name for name, weight in final.items() if not weight.equal(start[name].to(weight.dtype))}


def with_options(**wanted: Any) -> Check:
    """The run's record names these values of the section `training`, and what is clipped is a share."""

    def check(experiment: Experiment, lines: Lines) -> None:
        training = finished(experiment)["identity"]["training"]
        assert {key: training[key] for key in wanted} == wanted
        assert all(0 <= line["clip_share"] <= 1 and line["loss/entropy"] > 0 for line in lines)

    return check


def with_ranks(stage: int | None = None) -> Check:
    """Two ranks learnt, sharded by DeepSpeed as wanted."""

    def check(experiment: Experiment, lines: Lines) -> None:
        learner = finished(experiment)["identity"]["learner"]
        assert learner["ranks"] == 2 and learner.get("zero_stage") == stage
        if stage is not None:
            form = experiment.run_folder() / "checkpoints/iteration-000003/deepspeed/form.json"
            assert json.loads(form.read_text()) == {"ranks": 2, "zero_stage": stage}

    return check


def with_graphs(experiment: Experiment, lines: Lines) -> None:
    assert ON_CPU or (experiment.folder / "log").read_text().count("Graph capturing finished") >= 2


def of_the_engine(experiment: Experiment, lines: Lines) -> None:
    assert all(line["log_prob_gap"] == 0 for line in lines)  # not computed again


def corrected(experiment: Experiment, lines: Lines) -> None:
    assert all(line["correction/mean"] == pytest.approx(1, abs=GAP) for line in lines)
    assert all(line["correction/capped"] == 0 for line in lines)


def beside_the_rollout(experiment: Experiment, lines: Lines) -> None:
    assert all(line["time/scores"] < line["time/rollout"] for line in lines)
    assert all(0 < line["log_prob_gap"] < GAP for line in lines)  # recomputed


def merged_adapters(experiment: Experiment, lines: Lines) -> None:
    from hgpo.rollout.policy import load_policy

    names = changed(experiment)
    assert all(".self_attn." in name or ".mlp." in name for name in names)
    assert lines[-1]["loss/kl"] > 0
    load_policy(experiment.run_folder() / "final")


def with_critic(experiment: Experiment, lines: Lines) -> None:
    assert lines[0]["value/mean"] == 0 and lines[-1]["value/mean"] != 0
    assert all(math.isfinite(line["value/explained"]) and line["loss/value"] >= 0 for line in lines)


@dataclass(frozen=True)
class Case:
    """One way to train. model, training: changes of these sections. gpu_only: why it has no form on CPU processes."""

    name: str
    gpus: int
    model: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    check: Check | None = None
    method: str = "hgpo"
    gpu_only: str = ""
    variables: dict[str, str] = field(default_factory=dict)


OFFLOADED = {"offload_optimizer": True}
ADAPTERS = {"lora": {"rank": 4, "alpha": 8}, "learning_rate": 1e-2, "mini_batch_steps": 0}
HIGHER = {"entropy_coefficient": 0.02, "clip_high": 0.3}
SAYS_MORE = {"VLLM_LOGGING_LEVEL": "INFO"}

CASES = [  # those that take longest first
    Case("compile", 1, {"engine": vllm(), "learner": {"compile": True}}, gpu_only="compiling takes too long there"),
    Case("cuda-graphs", 1, {"engine": sleeping(eager=False)}, check=with_graphs, variables=SAYS_MORE),
    # a replica of two workers takes weights as a checkpoint in shared memory
    Case(
        "tensor-parallel-replica",
        3,
        {"engine": vllm(tensor_parallel=2), "placement": ray(1, colocated=False)},
        gpu_only="its workers are bound to more cores than there are",
    ),
    *(
        Case(
            f"zero-{stage}",
            2,
            {"dtype": dtype, "engine": vllm(replicas=2), "learner": deepspeed(stage), "placement": ray()},
            check=with_ranks(stage),
        )  # with stage 0 DeepSpeed adds gradients up in the weights' own precision
        for stage, dtype in enumerate(("float32", "bfloat16", "bfloat16", "bfloat16"))
    ),
    Case(
        "zero-2-offloaded",
        2,
        {"engine": sleeping(replicas=2), "learner": deepspeed(2, **OFFLOADED), "placement": ray()},
        check=with_ranks(2),
    ),
    Case(
        "zero-3-offloaded",
        2,
        {"engine": vllm(replicas=2), "learner": deepspeed(3, offload_weights=True, **OFFLOADED), "placement": ray()},
        check=with_ranks(3),
    ),
    Case(
        "critic-zero-2",
        2,
        {"engine": vllm(replicas=2), "learner": deepspeed(2), "placement": ray()},
        {"critic": CRITIC},
        with_critic,
        method="ppo",
    ),
    Case(
        "ranks-ipc",
        2,
        {"engine": sleeping(replicas=2, sync="ipc"), "placement": ray()},
        check=with_ranks(),
        gpu_only="CUDA shares memory between processes",
    ),
    Case(
        "ranks-overlap",
        2,
        {"engine": sleeping(replicas=2), "placement": ray(overlap=True)},
        {"token_budget": 700},
        beside_the_rollout,
    ),
    Case(
        "ranks-service",
        2,
        {"engine": sleeping(replicas=2, sync="ipc"), "placement": ray(overlap=True, mps=True)},
        {"token_budget": 700},
        beside_the_rollout,
        gpu_only="NVIDIA's multi-process service is for GPUs",
    ),
    Case("ranks-reload", 2, {"engine": sleeping(replicas=2), "placement": ray()}, check=with_ranks()),
    Case(
        "separate-nccl",
        2,
        {"engine": vllm(sync="nccl"), "placement": ray(1, colocated=False)},
        gpu_only="NCCL sends between GPUs",
    ),
    Case("checkpointing", 1, {"engine": sleeping(), "learner": {"gradient_checkpointing": True}}),
    Case("transformers-engine", 1, {"engine": {"kind": "transformers"}}),
    Case("adapters", 1, {"engine": vllm()}, ADAPTERS, merged_adapters),
    Case("critic", 1, {"engine": vllm()}, {"critic": CRITIC}, with_critic, method="ppo"),
    Case("clip-higher", 1, {"engine": vllm()}, HIGHER, with_options(**HIGHER)),
    Case("sequence-ratio", 1, {"engine": vllm()}, {"ratio": "sequence"}, with_options(ratio="sequence")),
    Case("engine-log-probs", 1, {"engine": vllm()}, {"old_log_probs": "engine"}, of_the_engine),
    Case("corrected-log-probs", 1, {"engine": vllm()}, {"old_log_probs": "corrected"}, corrected),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.gpus}gpu")
def test_a_run_goes_on_to_its_end(case, experiment, start):
    if ON_CPU and case.gpu_only:
        pytest.skip(f"no form on CPU processes: {case.gpu_only}")
    if "lora" in case.training:
        pytest.importorskip("peft")
    changes = MOVING | case.training | {"model": model(case.gpus, **case.model), "method": case.method}
    start(case.gpus, variables=case.variables, iterations=2, **changes).succeeds()
    job = start(case.gpus, "--allow-config-change", variables=case.variables, iterations=3, **changes)
    job.succeeds()
    lines = all_metrics(experiment, case.method)
    check_lines(lines, case.model["engine"]["kind"])
    folder = experiment.run_folder(case.method)
    assert "goes on from" in (folder / "train.log").read_text()
    assert changed(experiment, case.method) and finished(experiment, case.method)["iterations"] == 3
    if case.check:
        case.check(experiment, lines)


def all_metrics(experiment: Experiment, method: str) -> Lines:
    """The run's metrics, those of the machine, too."""
    path = experiment.run_folder(method) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_lines(lines: Lines, engine: str) -> None:
    """Three iterations as they should be, on GPUs if there are any."""
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert all(math.isfinite(value) for key, value in line.items() if key.startswith("loss/")), line
        assert math.isfinite(line["gradient_norm"]) and line["log_prob_gap"] < GAP
        assert engine == "transformers" or line["sync_gap"] < GAP
        assert line["engine/stale"] == 0 and line["failed"] == 0
        assert ON_CPU or max(line["memory/gpu_gb"], line.get("memory/learner_gb", 0)) > 0, "it learnt on the CPU"
    assert any(line["gradient_norm"] > 0 and line["advantage/std"] > 0 for line in lines)
