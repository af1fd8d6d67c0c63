"""The workflow on a real Slurm: several virtual nodes on this machine, fake GPUs, accounting.

HGPO_CLUSTER_TESTS=short (the default) runs the first test, full the others too, some ten minutes; off runs none.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from . import sandbox
from .conftest import (
    FORM,
    ITERATIONS,
    ROOT,
    Pipeline,
    assert_same_run,
    change,
    finished,
    held,
    new_project,
    run_folder,
    trainings,
)

full = pytest.mark.skipif(FORM != "full", reason="set HGPO_CLUSTER_TESTS=full for the long cluster tests")
pytestmark = pytest.mark.usefixtures("cluster")

RULES = ("check_environment", "warm_start", "train", "evaluate", "tables", "figures", "manifest", "viewer")
QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10")
STAGED = ("--until", "train")
ONCE = ("--retries", "0")


def on_slurm(*resources: str, profile: str = "slurm", more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Arguments of snakemake: a fake GPU for each training, little memory, quick looks at the state of jobs."""
    asked = [*(f"{rule}:mem_mb=900" for rule in RULES), "train:gpu=1", *resources]
    return ("--profile", profile, "--configfile", "toy.yaml", "--set-resources", *asked, *QUICK, *more)


def scontrol(*arguments: str) -> None:
    subprocess.run(["scontrol", *arguments], check=True, capture_output=True, timeout=120)


def submissions(run: Pipeline) -> list[str]:
    """The lines that say that a job was submitted."""
    return [line for line in run.text().splitlines() if "has been submitted with SLURM jobid" in line]


def test_the_pipeline_runs_and_a_cancelled_training_comes_to_the_same_result(
    tmp_path: Path, pipeline: Callable[..., Pipeline]
) -> None:
    folder = tmp_path / "project"
    new_project(folder)
    run = pipeline(folder, *on_slurm("train:slurm_extra='--nodelist=n0'"))
    waiting = {}

    def both_started() -> bool:
        for one in trainings(folder):
            if one.method not in waiting:
                one.hold()
                waiting[one.method] = one
        return len(waiting) == 2

    run.until("two trainings at once", both_started)
    assert {one.node for one in waiting.values()} == {"n0"}
    assert {one.gpu for one in waiting.values()} == {"0", "1"}, "each training sees its own GPU"
    for one in waiting.values():
        one.go_on()
    victim = held(run, "hgpo")
    subprocess.run(["scancel", victim.job], check=True, timeout=120)
    assert run.wait() == 0, run.text()
    assert "restart" in run.text()
    assert (folder / "results/toy/tables/results.md").exists()
    assert (folder / "results/toy/report.html").exists()
    # check, start, two trainings and one again, evaluations of three checkpoints, tables with figures, manifest
    assert len(submissions(run)) == 1 + 1 + 3 + 3 + 1 + 1, "small jobs share a Slurm job"
    journal = (folder / run_folder("hgpo") / "train.log").read_text()
    assert f"Slurm job {victim.job}: starts" in journal and "goes on from" in journal

    unbroken = tmp_path / "unbroken"
    shutil.copytree(folder, unbroken, symlinks=True, ignore=shutil.ignore_patterns("runs", ".snakemake"))
    again = pipeline(unbroken, f"{run_folder('hgpo')}/finished.json", "--cores", "1", "--configfile", "toy.yaml")
    assert again.wait() == 0, again.text()
    assert_same_run(folder, unbroken)


def test_doctor_finds_partitions_and_accounts_whoever_asks() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("USER", "LOGNAME")}
    command = [sys.executable, "-m", "hgpo", "doctor", "--use", "slurm"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout
    assert "main*, scavenge" in result.stdout and "toyacct" in result.stdout


@full
def test_a_training_at_its_time_limit_saves_and_comes_to_the_same_result(
    project: Path, prepared: Path, pipeline: Callable[..., Pipeline]
) -> None:
    run = pipeline(project, *on_slurm(more=STAGED))  # with the early signal that the profile asks for
    victim = held(run, "hgpo")
    scontrol("update", f"jobid={victim.job}", "timelimit=5")
    run.until("the early signal", lambda: signal_came(victim.pid))
    victim.go_on()
    run.until("a second job", lambda: "Trying to restart" in run.text())
    assert run.wait() == 0, run.text()
    assert state_of(victim.job) == "FAILED", "the training left before its time was up"
    assert_same_run(project, prepared)


def signal_came(pid: int) -> bool:
    """Whether SIGUSR1 waits to be taken by a process that is held, or the process has taken it and left."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & 1 << signal.SIGUSR1 - 1 for mask in pending)


def state_of(job: str) -> str:
    """What the accounting says of a job; it lags."""
    end = time.monotonic() + 60
    while True:
        state = sandbox.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "state").strip()
        if (state and state not in ("RUNNING", "COMPLETING")) or time.monotonic() > end:
            return state
        time.sleep(1)


@full
def test_a_preempted_training_comes_to_the_same_result(
    project: Path, prepared: Path, pipeline: Callable[..., Pipeline]
) -> None:
    run = pipeline(project, *on_slurm("train:slurm_partition=scavenge", more=STAGED))
    victim = held(run, "hgpo")
    options = ["--partition=main", "--nodes=3", "--exclusive", "--output=/dev/null", "--wait"]
    first = subprocess.Popen(["sbatch", *options, "--wrap=sleep 1"], stdout=subprocess.DEVNULL)
    assert first.wait(600) == 0, "the preempting job did not run"
    assert run.wait() == 0, run.text()
    assert not Path(f"/proc/{victim.pid}").exists()
    assert_same_run(project, prepared)


@full
def test_a_node_that_goes_down_costs_no_result(
    project: Path, prepared: Path, pipeline: Callable[..., Pipeline]
) -> None:
    run = pipeline(project, *on_slurm(more=STAGED))
    victim = held(run, "hgpo")
    scontrol("update", f"nodename={victim.node}", "state=down", "reason=test")
    try:
        assert run.wait() == 0, run.text()
    finally:
        # it may have come back by itself
        sandbox.run("scontrol", "update", f"nodename={victim.node}", "state=resume", check=False)
        sandbox.wait_for("the node", lambda: sandbox.idle_nodes() == 3)
    assert_same_run(project, prepared)


@full
def test_a_failed_training_is_reported_and_the_rest_goes_on(project: Path, pipeline: Callable[..., Pipeline]) -> None:
    (project / run_folder("grpo") / "metrics.jsonl").mkdir(parents=True)  # a folder in the way of the file
    run = pipeline(project, *on_slurm(more=(*STAGED, *ONCE)))
    assert run.wait() != 0
    assert finished(project, "hgpo")["iterations"] == ITERATIONS
    assert is_reported(run, project / "results/toy/logs/train/tiny/alfworld/grpo/K1/seed0.log")


@full
def test_a_failed_evaluation_is_reported_and_the_rest_goes_on(
    project: Path, prepared: Path, pipeline: Callable[..., Pipeline]
) -> None:
    change(project, matrix={"methods": ["hgpo"]})
    shutil.copytree(prepared / run_folder("hgpo"), project / run_folder("hgpo"))
    shutil.rmtree(project / run_folder("hgpo") / "final")
    run = pipeline(project, *on_slurm(more=ONCE))
    assert run.wait() != 0
    episodes = project / "results/toy/episodes/tiny/alfworld"
    assert (episodes / "warm_start/K1/seed0/in_domain/seed123.parquet").exists()
    assert not (project / "results/toy/tables").exists()
    logs = (project / "results/toy/logs/evaluate/tiny/alfworld/hgpo/K1/seed0").glob("*/seed123.log")
    # both splits share a job: the first to fail ends the other
    assert any(is_reported(run, log) for log in logs if log.stat().st_size)


def is_reported(run: Pipeline, log: Path) -> bool:
    """The output names the log of the failed job and shows its last line."""
    return str(log.relative_to(run.folder)) in run.text() and log.read_text().strip().splitlines()[-1] in run.text()


@full
@pytest.mark.parametrize(
    ("resource", "words"),
    [("train:slurm_partition=nowhere", "invalid partition"), ("train:slurm_account=nobody", "appears to be invalid")],
)
def test_an_unknown_partition_or_account_is_one_clear_message(
    resource: str, words: str, project: Path, pipeline: Callable[..., Pipeline]
) -> None:
    run = pipeline(project, *on_slurm(resource, more=(*STAGED, *ONCE)))
    assert run.wait() != 0
    assert words in run.text()
    assert resource.split("=")[1] in run.text()
    assert not list((project / "results").rglob("finished.json"))


@full
def test_several_jobs_in_one_slurm_job_that_cannot_be_submitted_say_why(
    project: Path, pipeline: Callable[..., Pipeline]
) -> None:
    run = pipeline(project, *on_slurm("evaluate:slurm_partition=nowhere", more=("--until", "evaluate", *ONCE)))
    assert run.wait() != 0
    reasons = [line for line in run.text().splitlines() if line.startswith("Error in group evaluate")]
    assert reasons and "invalid partition" in run.text() and "nowhere" in run.text()


@full
def test_a_second_pipeline_in_the_folder_is_refused_and_the_first_goes_on(
    project: Path, pipeline: Callable[..., Pipeline]
) -> None:
    first = pipeline(project, *on_slurm(more=STAGED))
    one = held(first, "hgpo")
    second = pipeline(project, *on_slurm(more=STAGED))
    assert second.wait() != 0
    assert "Directory cannot be locked" in second.text()
    assert first.process.poll() is None
    one.go_on()
    assert first.wait() == 0, first.text()
    assert finished(project, "hgpo")["iterations"] == ITERATIONS
