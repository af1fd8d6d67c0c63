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


def test_a_run_on_two_nodes_starts_ray_on_both_and_ends_it(cluster: None, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path).prepare()
    config = experiment.config(model=TWO_NODES, iterations=2)
    script, output = tmp_path / "job.sh", tmp_path / "job.log"
    service, noted = tmp_path / "nvidia-cuda-mps-control", tmp_path / "noted"
    service.write_text(f'#!/bin/sh\necho "${{1:-$(cat)}} $SLURMD_NODENAME" >> {noted}\n')
    service.chmod(0o755)
    job_script = JOB.format(source=ROOT / "src", python=sys.executable, config=config, programs=tmp_path)
    script.write_text(job_script)
    submit = [
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--mem=3000",
        f"--output={output}",
    ]
    job = subprocess.run([*submit, str(script)], capture_output=True, text=True, check=True).stdout.strip()
    deadline = time.monotonic() + LONG_S
    joined = 0
    while subprocess.run(["squeue", "-h", "-j", job], capture_output=True, text=True).stdout.strip():
        steps = subprocess.run(["squeue", "-h", "-s", "-j", job, "-o", "%N"], capture_output=True, text=True).stdout
        joined = max(joined, len({node for node in steps.split() if node}))
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(1)
    finished = experiment.run_folder() / "finished.json"
    assert finished.exists(), output.read_text()
    assert json.loads(finished.read_text())["iterations"] == 2
    assert joined == 2, "the job's steps should have been on two nodes"
    calls = sorted(noted.read_text().splitlines())
    nodes = {call.split()[1] for call in calls}
    assert len(nodes) == 2 and calls == sorted(f"{what} {node}" for what in ("-d", "quit") for node in nodes)
    assert [line["iteration"] for line in experiment.metrics()] == [0, 1]
