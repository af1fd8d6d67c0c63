"""Runs an experiment on the GPUs of one machine without Snakemake: many small runs side by side, within a time limit.

usage: python tools/side_by_side.py --config config/study.yaml --minutes 9 --out OUT

From wherever it stands, it does what is still missing: data, starting checkpoints, training runs, evaluations. Run it
again to go on. When the time is up, training runs are asked to save and everything else is ended; with
--evaluate-minutes, training ends so long before, and the newest checkpoints of unfinished runs are evaluated. In any
case all results but weights are packed into OUT: `results.tar.xz` (settings, metrics, episodes, records, logs) and
`steps.tar.xz` (what was said and done at each step), cut into pieces of --piece-mb: `cat` joins them.
Exit code: 0 everything is done, 75 the time was up, 1 a job failed (its log is shown).

Runs are named METHOD/K/SEED or ENVIRONMENT/METHOD/K/SEED with * for any, e.g. --runs 'hgpo/2/*' 'webshop/grpo/2/0';
the order is that of importance.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import lzma
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hgpo.config import Config, Run, load_config, plan_baselines, plan_runs
from hgpo.config.experiment import parse_config, read_yaml
from hgpo.errors import ConfigError, HgpoError
from hgpo.files import write_text
from hgpo.reporting.collect import warm_start_runs
from hgpo.training.checkpoint import list_checkpoints
from hgpo.training.process_service import process_service

SAVING_S = 50.0  # time a training run gets to save its state
PACKING_S = 15.0
STAGES = ["start", "train", "evaluate"]
STOPPED = 75  # exit code of a training run that saved its state


@dataclass
class Job:
    """A command. done: the files it leaves; needs: files it waits for; slots: shares of a GPU it takes.

    checkpoints: where a training run saves; for its evaluation, where to take one from if it does not finish.
    """

    name: str
    command: list[str]
    done: list[Path]
    needs: list[Path] = field(default_factory=list)
    slots: int = 0
    checkpoints: Path | None = None
    tries: int = 2
    process: subprocess.Popen[bytes] | None = None
    gpu: int | None = None
    begun: float = 0.0

    def is_done(self) -> bool:
        return all(path.exists() for path in self.done)

    def is_training(self) -> bool:
        return self.name.startswith("train-")


def main() -> int:
    options = read_options()
    end = time.monotonic() + 60 * options.minutes
    config, file = resolve(options.config, options.set)
    os.environ.setdefault("OMP_NUM_THREADS", "2")  # of each of many processes
    packed = end - (PACKING_S if options.out else 0)
    table = Table(plan(config, file, options), config.folder / "logs", options.gpus, options.per_gpu, packed)
    if options.evaluate_minutes:
        table.train_end = end - 60 * options.evaluate_minutes
    signal.signal(signal.SIGTERM, lambda *_: table.hurry())
    try:
        with process_service() if options.mps else nullcontext():
            code = table.work()
    finally:
        if options.out:
            pack(config.folder, options.out, options.piece_mb, options.pieces)
    return code


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], metavar="KEY=VALUE", help="settings to change, e.g. a.b=3"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="time limit, packing included")
    parser.add_argument("--evaluate-minutes", type=float, help="at the end, for evaluation alone")
    parser.add_argument(
        "--mps", action="store_true", help="processes share a GPU through NVIDIA's multi-process service"
    )
    parser.add_argument("--runs", nargs="*", default=["*"], help="patterns of [ENVIRONMENT/]METHOD/K/SEED")
    parser.add_argument("--allow-config-change", action="store_true", help="as of `hgpo train`")
    parser.add_argument("--stages", nargs="*", default=STAGES, choices=STAGES, help="data are prepared in any case")
    parser.add_argument("--gpus", type=int, default=None, help="default: all of CUDA_VISIBLE_DEVICES; 0: none")
    parser.add_argument("--per-gpu", type=int, default=3, help="runs that share a GPU (or the CPUs)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="for compiling games")
    parser.add_argument("--out", type=Path, help="folder for the packed results")
    parser.add_argument("--piece-mb", type=int, default=15)
    parser.add_argument("--pieces", type=int, default=5, help="largest number of pieces of steps.tar.xz")
    options = parser.parse_args()
    if options.gpus is None:
        import torch

        options.gpus = torch.cuda.device_count()
    return options


def resolve(file: Path, changes: Iterable[str]) -> tuple[Config, Path]:
    """The configuration with the changes, and the file in the results folder that every command reads."""
    body = read_yaml(file)
    for change in changes:
        key, _, value = change.partition("=")
        *path, last = key.split(".")
        section: dict[str, Any] = body
        for part in path:
            section = section.setdefault(part, {})
        section[last] = yaml.safe_load(value)
    config = parse_config(body, str(file))
    resolved = config.folder / "config.yaml"
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    if not resolved.exists() or resolved.read_text(encoding="utf-8") != text:
        write_text(resolved, text)
    return load_config(resolved), resolved


def plan(config: Config, file: Path, options: argparse.Namespace) -> list[Job]:
    """All jobs of the wanted stages, the important ones first."""
    runs = chosen(plan_runs(config), options.runs)
    jobs: list[Job] = []
    base = ["--config", str(file)]
    for environment in sorted({run.environment for run in runs}):
        marker = config.data_folder(environment) / "prepared.json"
        jobs.append(
            Job(f"prepare-{environment}", [*hgpo("prepare-data"), *base, "--environment", environment], [marker])
        )
        record = config.folder / "checks" / f"{environment}.json"
        command = [*hgpo("check-environment"), *base, "--environment", environment, "--out", str(record)]
        jobs.append(Job(f"check-{environment}", command, [record], [marker]))
        if environment == "alfworld":
            compiled = config.data_folder(environment) / "compiled"
            folder, count = str(config.data_folder(environment)), str(options.processes)
            script = '"$@" && touch "$0"'
            command = [*hgpo("env"), "compile", environment, "--data", folder, "--workers", count]
            jobs.append(Job("compile-games", ["sh", "-c", script, str(compiled), *command], [compiled], [marker]))
    if "start" in options.stages:
        starts = dict.fromkeys((run.model, run.environment, run.history) for run in runs)
        jobs += [start_job(config, base, *start, options.per_gpu) for start in starts]
    if "train" in options.stages:
        for run in runs:
            set_aside(config, run)
        change = ["--allow-config-change"] if options.allow_config_change else []
        jobs += [train_job(config, base + change, run) for run in runs]
    if "evaluate" in options.stages:
        wanted = {(run.model, run.environment, run.history) for run in runs}
        begin = [run for run in warm_start_runs(config) if (run.model, run.environment, run.history) in wanted]
        baselines = [run for run in plan_baselines(config) if run.environment in {r.environment for r in runs}]
        jobs += [evaluate_job(config, base, run) for run in [*begin, *runs, *baselines]]
    return [job for job in jobs if not job.is_done()]


def hgpo(command: str) -> list[str]:
    return [sys.executable, "-m", "hgpo", command]


def chosen(runs: Sequence[Run], patterns: Sequence[str]) -> list[Run]:
    """The runs that a pattern names, in the order of the patterns. Raises ConfigError for one that names none."""
    found: list[Run] = []
    for pattern in patterns:
        matching = [run for run in runs if any(fnmatch.fnmatch(name, pattern) for name in names(run))]
        if not matching:
            raise ConfigError(f"--runs {pattern}: no run of the matrix is called so", "name METHOD/K/SEED")
        found += [run for run in matching if run not in found]
    return found


def names(run: Run) -> tuple[str, str]:
    """What a pattern may call the run."""
    short = f"{run.method}/{run.history}/{run.seed}"
    return short, f"{run.environment}/{short}"


def start_job(config: Config, base: list[str], model: str, environment: str, history: int, slots: int) -> Job:
    done = Run(model, environment, "warm_start", history, 0).start_folder(config) / "checkpoint.json"
    command = [*hgpo("warm-start"), *base, "--model", model, "--environment", environment, "--history", str(history)]
    needs = [config.data_folder(environment) / "prepared.json"]
    if environment == "alfworld":
        needs.append(config.data_folder(environment) / "compiled")
    return Job(f"start-{model}-{environment}-K{history}", command, [done], needs, max(1, slots // 2))


def train_job(config: Config, base: list[str], run: Run) -> Job:
    command = [*hgpo("train"), *base, "--model", run.model, "--environment", run.environment, "--method", run.method]
    command += ["--history", str(run.history), "--seed", str(run.seed)]
    needs = [run.start_folder(config) / "checkpoint.json"]
    done = [run.folder(config) / "finished.json"]
    return Job(f"train-{name(run)}", command, done, needs, slots=1, checkpoints=run.checkpoint_folder(config))


def set_aside(config: Config, run: Run) -> None:
    """Moves the evaluation of a run that goes on to `earlier/`: what the run ends with is evaluated in its place."""
    played, saved = config.folder / "episodes" / str(run), list_checkpoints(run.checkpoint_folder(config))
    if played.exists() and saved and not (run.folder(config) / "finished.json").exists():
        aside = config.folder / "earlier" / str(run) / saved[-1].name
        shutil.rmtree(aside, ignore_errors=True)  # of the same checkpoint: the same episodes
        aside.parent.mkdir(parents=True, exist_ok=True)
        played.rename(aside)


def evaluate_job(config: Config, base: list[str], run: Run) -> Job:
    splits, seeds = config.environment(run.environment).evaluation_splits, config.evaluation.seeds
    done = [run.episodes(config, split, seed) for split in splits for seed in seeds]
    command, needs, slots = hgpo("evaluate"), [config.data_folder(run.environment) / "prepared.json"], 0
    checkpoints = None
    if run.method == "warm_start":
        needs, slots = [run.start_folder(config) / "checkpoint.json"], 1
        command.append(str(needs[0].parent))
    elif run in plan_runs(config):
        needs, slots, checkpoints = [run.folder(config) / "finished.json"], 1, run.checkpoint_folder(config)
        command.append(str(needs[0].parent / "final"))
    command += [*base, "--model", run.model, "--environment", run.environment, "--method", run.method]
    command += ["--history", str(run.history), "--training-seed", str(run.seed)]
    return Job(f"evaluate-{name(run)}", command, done, needs, slots, checkpoints)


def name(run: Run) -> str:
    return str(run).replace("/", "-")


class Table:
    """Jobs under way on the GPUs. Each GPU has `per_gpu` slots; without GPUs the machine counts as one."""

    def __init__(self, jobs: list[Job], logs: Path, gpus: int, per_gpu: int, end: float) -> None:
        self.end, self.train_end = end, math.inf
        self.waiting, self.running, self.failed = jobs, list[Job](), list[str]()
        self.unfinished: list[Job] = []  # training runs that were ended for the evaluations
        self.logs, self.gpus, self.per_gpu = logs, gpus, per_gpu
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = visible.split(",") if visible else [str(gpu) for gpu in range(gpus)]
        logs.mkdir(parents=True, exist_ok=True)

    def hurry(self) -> None:
        """Lets the time be up now."""
        self.end = min(self.end, time.monotonic() + self._saving())

    def work(self) -> int:
        """Until nothing can be started any more, or until `end` (time.monotonic): the exit code."""
        shown = 0.0
        while self.waiting or self.running:
            self._reap()
            if time.monotonic() >= self.end - self._saving():
                self._stop(self.running, self.end)
                self.waiting = [*self.running, *self.waiting]
                break
            if time.monotonic() >= self.train_end:
                self._end_training()
            self._start()
            if not self.running:
                break
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                self._show()
            time.sleep(0.5)
        left = [*self.unfinished, *self.waiting]
        for job in left:
            print(f"not done: {job.name}", flush=True)
        return 1 if self.failed else STOPPED if left else 0

    def _saving(self) -> float:
        return SAVING_S if any(job.is_training() for job in self.running) else 0.0

    def _start(self) -> None:
        for job in list(self.waiting):
            if any(not path.exists() for path in job.needs):
                continue
            gpu = self._free(job.slots)
            if job.slots and gpu is None:
                continue
            self.waiting.remove(job)
            job.gpu, job.begun = gpu, time.monotonic()
            environment = dict(os.environ)
            device = self.devices[gpu] if self.gpus and job.slots and gpu is not None else ""
            if self.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = device
            print(f"begins: {job.name}" + (f" on GPU {device}" if device else ""), flush=True)
            with open(self.logs / f"{job.name}.log", "ab") as log:
                job.process = subprocess.Popen(
                    job.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, process_group=0
                )
            self.running.append(job)

    def _free(self, slots: int) -> int | None:
        """The GPU with the most free slots, if they are enough."""
        free = dict.fromkeys(range(max(1, self.gpus)), self.per_gpu)
        for job in self.running:
            if job.slots and job.gpu is not None:
                free[job.gpu] -= job.slots
        best = max(free, key=lambda gpu: (free[gpu], -gpu))
        return best if slots and free[best] >= slots else None

    def _reap(self) -> None:
        for job in list(self.running):
            assert job.process is not None
            code = job.process.poll()
            if code is None:
                continue
            self.running.remove(job)
            end_helpers(job.process)
            took = f"after {time.monotonic() - job.begun:.0f} s"
            if code == 0 and job.is_done():
                print(f"done: {job.name} {took}", flush=True)
                continue
            job.tries -= 1
            print(f"failed with {code}: {job.name} {took}\n{self._last_words(job, 25)}", flush=True)
            if job.tries > 0:
                self.waiting.append(job)
            else:
                self.failed.append(job.name)

    def _end_training(self) -> None:
        """Lets runs save and leave; what they reached is evaluated."""
        self.train_end = math.inf
        running = [job for job in self.running if job.is_training()]
        self._stop(running, time.monotonic() + SAVING_S)
        self.running = [job for job in self.running if job not in running]
        self.unfinished = [*running, *(job for job in self.waiting if job.is_training())]
        self.waiting = [job for job in self.waiting if not job.is_training()]
        for job in self.waiting:
            if job.checkpoints and not job.needs[0].exists() and (saved := list_checkpoints(job.checkpoints)):
                job.command[job.command.index(str(job.needs[0].parent / "final"))] = str(saved[-1])
                job.needs = []

    def _stop(self, jobs: list[Job], end: float) -> None:
        """Asks jobs to save and leave; whatever is left shortly before `end` is killed."""
        print(f"time is up: {len(jobs)} jobs are stopped", flush=True)
        for job in jobs:
            assert job.process is not None
            job.process.send_signal(signal.SIGTERM)
        for job in jobs:
            assert job.process is not None
            try:
                code: int | str = job.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.process.kill()
                code = "killed: it did not leave in time"
            end_helpers(job.process)
            print(f"stopped: {job.name} ({'saved' if code == STOPPED else code})", flush=True)

    def _show(self) -> None:
        print(f"-- {self.end - time.monotonic():.0f} s left, {len(self.waiting)} jobs wait", flush=True)
        for job in self.running:
            print(f"   {job.name}: {self._last_words(job, 1)[-150:]}", flush=True)

    def _last_words(self, job: Job, lines: int) -> str:
        """The end of its log, or of its metrics if it trains."""
        metrics = job.done[0].parent / "metrics.jsonl"
        if lines == 1 and job.is_training() and metrics.exists():
            written = metrics.read_text(encoding="utf-8").split("\n")[:-1]  # a line under way is not whole yet
            if written:
                line = json.loads(written[-1])
                mean = sum(json.loads(text)["success"] for text in written[-5:]) / len(written[-5:])
                return (
                    f"iteration {line['iteration']} in {line['time/total']:.1f} s (rollout {line['time/rollout']:.1f}, "
                    f"update {line['time/update']:.1f}), success of the last five {mean:.2f}, "
                    f"KL {line.get('loss/kl', 0.0):.4f}"
                )
        text = (self.logs / f"{job.name}.log").read_bytes()[-6000:].decode("utf-8", "replace").replace("\r", "\n")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def end_helpers(process: subprocess.Popen[bytes]) -> None:
    """Ends what a job that has ended left running: a process that was ended by a signal leaves its workers behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def pack(results: Path, out: Path, piece_mb: int, pieces: int) -> None:
    """Writes the two archives into `out`; what does not fit of the steps is left out, and said."""
    files = sorted(path for path in results.rglob("*") if path.is_file() and not path.name.startswith("."))
    with_weights = {path.parent for path in files if path.name.endswith(".safetensors")}  # left out but their record
    files = [path for path in files if path.parent not in with_weights or path.name == "checkpoint.json"]
    files = [path for path in files if "checkpoints" not in path.parts and "tensorboard" not in path.parts]
    is_steps = {path: path.name.endswith(".steps.parquet") or "rollouts" in path.parts for path in files}
    out.mkdir(parents=True, exist_ok=True)
    write_pieces(out / "results.tar.xz", archive([p for p in files if not is_steps[p]], results), piece_mb)
    room, kept = pieces * piece_mb * 1_000_000, []
    for path in sorted((p for p in files if is_steps[p]), key=lambda p: "rollouts" not in p.parts):
        room -= path.stat().st_size
        if room < 0:
            print(f"left out for want of room: {path}", flush=True)
        else:
            kept.append(path)
    if kept:
        write_pieces(out / "steps.tar.xz", archive(kept, results), piece_mb)


def archive(files: Iterable[Path], root: Path) -> bytes:
    packed = io.BytesIO()
    with lzma.open(packed, "wb", preset=1) as compressed, tarfile.open(fileobj=compressed, mode="w|") as tar:
        for path in files:
            tar.add(path, arcname=str(Path(root.name) / path.relative_to(root)))
    return packed.getvalue()


def write_pieces(path: Path, content: bytes, piece_mb: int) -> None:
    size = piece_mb * 1_000_000
    for number, first in enumerate(range(0, len(content), size)):
        piece = path.with_name(path.name if len(content) <= size else f"{path.name}.{number:02d}")
        piece.write_bytes(content[first : first + size])
        print(f"packed: {piece.name}, {piece.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HgpoError as error:
        sys.exit(f"side_by_side: {error}")
