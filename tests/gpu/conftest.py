from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from experiment import Experiment  # noqa: E402
from gpu import AGENT, WARM_START, Job, cards, hgpo, model  # noqa: E402


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Experiment:
    """Data and starting checkpoint, made by one of pytest-xdist's workers for all."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "prepared"
    experiment, done = Experiment(shared), shared / "done"
    with FileLock(f"{shared}.lock"):
        if not done.exists():
            shared.mkdir(exist_ok=True)
            for command in experiment.preparation(model=model(1), warm_start=WARM_START, agent=AGENT):
                Job(hgpo(*command), shared / "log", cards(1)).succeeds()
            done.touch()
    return experiment


@pytest.fixture
def experiment(prepared, tmp_path) -> Experiment:
    return prepared.other(tmp_path)


@pytest.fixture
def start(experiment) -> Iterator[Callable[..., Job]]:
    """Starts `hgpo train` on so many GPUs: start(gpus, *options, **changes of the configuration)."""
    jobs: list[Job] = []

    def start(gpus: int, *options: str, variables: dict[str, str] | None = None, **changes) -> Job:
        command = experiment.command(*options, agent=AGENT, **changes)
        jobs.append(Job(command, experiment.folder / "log", cards(gpus), **(variables or {})))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
