"""A Slurm cluster for the tests: the machine's programs, installed first where that is allowed, in a folder of ours."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from . import sandbox

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


FORM = os.environ.get("HGPO_CLUSTER_TESTS", "short")
WAIT_FOR_ANOTHER_S = 3600
LONG_S = 1200  # a busy machine is slow; nothing waits that long when all is well
ITERATIONS = 6


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """A running throw-away Slurm with three nodes, two fake GPUs each; with accounting unless ACCOUNTING is False."""
    if FORM not in ("short", "full", "off"):
        pytest.fail(f"HGPO_CLUSTER_TESTS={FORM}: it is short, full or off")
    if FORM == "off":
        pytest.skip("HGPO_CLUSTER_TESTS=off: no tests on a real Slurm")
    reason = sandbox.missing()
    if reason:
        pytest.skip(f"no throw-away Slurm on this machine: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="hgpo-slurm-"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: everything is taken down
    accounting = getattr(request.module, "ACCOUNTING", True)
    try:
        sandbox.start(folder, accounting=accounting, owner=os.getpid(), patience_s=WAIT_FOR_ANOTHER_S)
        yield
    finally:
        sandbox.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


@dataclass
class Pipeline:
    """A snakemake process in the background, and what it wrote."""

    folder: Path
    arguments: tuple[str, ...]
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.folder / f"snakemake-{time.time_ns()}.log"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "snakemake", *self.arguments]
        with open(self.output, "w") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=environment, text=True
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def until(self, what: str, condition: Callable[[], object], seconds: float = LONG_S) -> None:
        """Waits until `condition` holds; fails with the output if the process ends before or time runs out."""
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"{what} did not happen:\n{self.text()[-6000:]}")
            time.sleep(0.1)

    def wait(self, seconds: float = LONG_S) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:.0f} s:\n{self.text()[-6000:]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()


@pytest.fixture
def pipeline() -> Iterator[Callable[..., Pipeline]]:
    """Starts snakemake in a project's folder; ends it after the test."""
    started: list[Pipeline] = []

    def start(folder: Path, *arguments: str) -> Pipeline:
        started.append(Pipeline(folder, arguments))
        return started[-1]

    yield start
    if any(one.process.poll() is None for one in started) and sandbox.running():
        sandbox.run("scancel", "--user=root", check=False)  # also a training that is held
    for one in started:
        one.stop()


def new_project(folder: Path, **training: object) -> None:
    """Lays the workflow and the experiment `toy.yaml` there: the miniature one with a little more training."""
    folder.mkdir()
    shutil.copy(ROOT / "Snakefile", folder)
    for name in ("workflow", "config"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("profiles", "slurm", "slurm-nocct"):
        (folder / name).symlink_to(os.readlink(ROOT / name))
    change(folder, name="toy")
    # weights move even if no episode is won
    change(folder, training={"iterations": ITERATIONS, "entropy_coefficient": 0.05} | training)


def change(folder: Path, **sections: object) -> None:
    """Changes values of the project's experiment: a mapping's single keys, anything else as a whole."""
    file = folder / "toy.yaml"
    body = yaml.safe_load((file if file.exists() else folder / "config/miniature.yaml").read_text())
    for name, value in sections.items():
        body[name] = body[name] | value if isinstance(value, dict) else value
    file.write_text(yaml.safe_dump(body))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with data, starting checkpoint and an unbroken `hgpo` run, all made without Slurm."""
    folder = tmp_path_factory.mktemp("prepared") / "project"
    new_project(folder)
    made = Pipeline(folder, (f"{run_folder('hgpo')}/finished.json", "--cores", "2", "--configfile", "toy.yaml"))
    assert made.wait() == 0, made.text()
    return folder


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared project without the run; the tests are about what comes after the start."""
    folder = tmp_path / "project"
    shutil.copytree(prepared, folder, symlinks=True, ignore=shutil.ignore_patterns("runs", ".snakemake", "*.log"))
    return folder


def run_folder(method: str) -> str:
    return f"results/toy/runs/tiny/alfworld/{method}/K1/seed0"


def finished(folder: Path, method: str) -> dict[str, object]:
    return json.loads((folder / run_folder(method) / "finished.json").read_text())


def metrics(folder: Path, method: str) -> list[dict[str, object]]:
    """The metrics of a run without what depends on the machine."""
    rows = [json.loads(line) for line in (folder / run_folder(method) / "metrics.jsonl").read_text().splitlines()]
    aside = ("time/", "memory/", "tokens_per", "engine/")
    return [{key: v for key, v in row.items() if not key.startswith(aside)} for row in rows]


def iterations(folder: Path, method: str) -> int:
    path = folder / run_folder(method) / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def assert_same_run(one: Path, other: Path, method: str = "hgpo") -> None:
    """The two folders hold the same run: to the last bit of weights and metrics."""
    assert finished(one, method)["checkpoint_hash"] == finished(other, method)["checkpoint_hash"]
    assert metrics(one, method) == metrics(other, method)


@dataclass(frozen=True)
class Training:
    """A running `hgpo train` process: its method, node, GPU and Slurm job."""

    pid: int
    method: str
    node: str
    gpu: str
    job: str

    def hold(self) -> None:
        """Stops the clock of the training, so that what a test does to its job comes in the middle of it."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


def trainings(folder: Path) -> list[Training]:
    """The training processes that run in `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_text().split("\0")
            lines = (process / "environ").read_text().split("\0")
            inside = Path(os.readlink(process / "cwd")) == folder
        except OSError:
            continue
        if inside and "train" in words and any(word.endswith("/hgpo") for word in words):
            environment = dict(line.split("=", 1) for line in lines if "=" in line)
            found.append(
                Training(
                    int(process.name),
                    words[words.index("--method") + 1],
                    environment.get("SLURMD_NODENAME", ""),
                    environment.get("CUDA_VISIBLE_DEVICES", ""),
                    environment.get("SLURM_JOB_ID", ""),
                )
            )
    return found


def held(run: Pipeline, method: str) -> Training:
    """The running training of a method, held after its first iteration."""
    found: list[Training] = []

    def there() -> bool:
        found[:] = [one for one in trainings(run.folder) if one.method == method]
        return bool(found) and iterations(run.folder, method) >= 1

    run.until(f"a first iteration of {method}", there)
    found[0].hold()
    assert not (run.folder / run_folder(method) / "finished.json").exists(), "the training was too fast for the test"
    return found[0]
