"""A training run on two nodes of a real Slurm: it starts Ray on both from within its own job step, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import LONG_S, ROOT

pytest.importorskip("ray")
pytest.importorskip("deepspeed")
sys.path.insert(0, str(ROOT / "tests" / "training"))

from experiment import Experiment  # noqa: E402

ACCOUNTING = False
TWO_NODES = {
    "placement": {"kind": "ray", "nodes": 2, "learner_ranks": 2, "colocated": True, "mps": True},
    "learner": {"kind": "deepspeed", "zero_stage": 1},
    "engine": {"replicas": 2},
}
# The step has one task on one node of two, as the workflow's has.
JOB = """#!/bin/sh
export OMP_NUM_THREADS=1 RAY_worker_niceness=0 PYTHONPATH={source} PATH={programs}:$PATH
exec srun --ntasks=1 --nodes=1 {python} -m hgpo train --config {config} --model tiny --environment webshop \\
  --method hgpo --history 1 --seed 0
"""


def submit(experiment: Experiment, config: Path, folder: Path) -> tuple[str, Path]:
    """The job's number, and its log. Calls of a stand-in for the program of NVIDIA's service are in `calls`."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "${{1:-$(cat)}} $SLURMD_NODENAME" >> {folder / "calls"}\n')
    program.chmod(0o755)
    script, output = folder / "job.sh", folder / "job.log"
    script.write_text(JOB.format(source=ROOT / "src", python=sys.executable, config=config, programs=folder))
    command = ["sbatch", "--parsable", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mem=3000"]
    command += [f"--output={output}", str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(), output


def is_there(job: str) -> bool:
    return bool(subprocess.run(["squeue", "-h", "-j", job], capture_output=True, text=True).stdout.strip())


def test_a_run_on_two_nodes_starts_ray_on_both_and_ends_it(cluster: None, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path).prepare()
    config = experiment.config(model=TWO_NODES, iterations=2)
    job, output = submit(experiment, config, tmp_path)
    deadline = time.monotonic() + LONG_S
    joined = 0
    while is_there(job):
        steps = subprocess.run(["squeue", "-h", "-s", "-j", job, "-o", "%N"], capture_output=True, text=True).stdout
        joined = max(joined, len({node for node in steps.split() if node}))
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(1)
    finished = experiment.run_folder() / "finished.json"
    assert finished.exists(), output.read_text()
    assert json.loads(finished.read_text())["iterations"] == 2
    assert joined == 2, "the job's steps should have been on two nodes"
    calls = sorted((tmp_path / "calls").read_text().splitlines())
    nodes = {call.split()[-1] for call in calls}
    assert len(nodes) == 2 and calls == sorted(f"{what} {node}" for what in ("-d", "quit -t 20") for node in nodes)
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1]


@pytest.mark.parametrize("service", [False, True])
def test_a_run_on_two_nodes_saves_when_slurm_announces_its_time_limit(
    cluster: None, tmp_path: Path, service: bool
) -> None:
    experiment = Experiment(tmp_path).prepare()
    placement = TWO_NODES["placement"] | {"mps": service}
    config = experiment.config(model=TWO_NODES | {"placement": placement}, iterations=1000, checkpoint_every=1000)
    job, output = submit(experiment, config, tmp_path)
    deadline = time.monotonic() + LONG_S
    metrics = experiment.run_folder() / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 2:
        assert is_there(job) and time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    subprocess.run(["scancel", "--signal=USR1", job], check=True)  # to every step, as Slurm does it
    while is_there(job):
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.5)
    (saved,) = experiment.checkpoints()
    assert saved > "iteration-000000" and "stopped by SIGUSR1" in output.read_text(), output.read_text()
