"""Runs on real GPUs that are stopped, killed, or lose one of their processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
from experiment import Experiment
from gpu import Job, model, needs_gpus, ray, sleeping, vllm

pytestmark = needs_gpus
ALONE = {"engine": vllm()}
SPREAD = {"engine": sleeping(replicas=2), "placement": ray()}
ITERATIONS = 4


def under_way(experiment: Experiment, job: Job) -> None:
    """Waits for the first checkpoint: the second iteration's rollout begins."""
    job.until("a checkpoint", experiment.checkpoints)


def check_all_there(experiment: Experiment) -> None:
    assert [line["iteration"] for line in experiment.metrics()] == list(range(ITERATIONS))
    assert (experiment.run_folder() / "finished.json").exists()


def actors(job: Job, title: str) -> set[int]:
    """The numbers of the job's processes that Ray calls so."""
    found = set()
    for process in psutil.Process(job.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it ended in between
            if any(word.startswith(title) for word in process.cmdline()):
                found.add(process.pid)
    return found


def test_sigterm_saves_and_the_same_command_goes_on(experiment, start):
    changes = {"model": model(1, **ALONE), "iterations": ITERATIONS}
    job = start(1, **changes)
    under_way(experiment, job)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.code() == 75, job.said()
    assert "stopped by SIGTERM after" in job.said() and "run the same command again" in job.said()
    start(1, **changes).succeeds()
    check_all_there(experiment)


def test_a_killed_run_goes_on_from_its_checkpoint(experiment, start):
    changes = {"model": model(1, **ALONE), "iterations": ITERATIONS}
    job = start(1, **changes)
    under_way(experiment, job)
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.code() == -signal.SIGKILL, "the run was over before it could be killed"
    start(1, **changes).succeeds()
    check_all_there(experiment)
    assert "goes on from" in (experiment.run_folder() / "train.log").read_text()


def test_a_run_survives_the_death_of_a_replica(experiment, start):
    job = start(2, model=model(2, **SPREAD), iterations=ITERATIONS)
    under_way(experiment, job)
    before = actors(job, "ray::Replica")
    os.kill(job.until("a decoding replica", lambda: actors(job, "ray::Replica.exchange")).pop(), signal.SIGKILL)
    job.until("a new replica", lambda: actors(job, "ray::Replica") - before)
    job.succeeds()
    check_all_there(experiment)


def test_the_death_of_a_learner_rank_stops_the_run_which_then_goes_on(experiment, start):
    changes = {"model": model(2, **SPREAD), "iterations": ITERATIONS}
    job = start(2, **changes)
    under_way(experiment, job)
    os.kill(max(actors(job, "ray::LearnerRank")), signal.SIGKILL)
    assert job.code() == 1, job.said()
    message = [line for line in job.said().splitlines() if line.startswith("hgpo: ")]
    assert len(message) == 1 and "learner rank" in message[0] and " died in " in message[0], job.said()
    assert "run the same command again to go on from the newest checkpoint" in job.said()
    start(2, **changes).succeeds()
    check_all_there(experiment)
