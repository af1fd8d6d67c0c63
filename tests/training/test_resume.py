"""Runs that are stopped, killed or fail go on as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from hgpo.errors import CheckpointError, ConfigError, HgpoError, Interrupted
from hgpo.rollout.policy import load_policy
from hgpo.rollout.transformers_engine import TransformersEngine
from hgpo.training.loop import Trainer
from hgpo.training.metrics import MetricsLog
from hgpo.training.signals import StopSignal


class StopAfter(StopSignal):
    """A signal that comes at the given look at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        if self.looks <= 0:
            self.received = "SIGTERM"
        return super().__call__()


def same(experiment, unbroken, method: str = "hgpo") -> bool:
    return experiment.metrics(method) == unbroken.metrics(method) and experiment.weights(method) == unbroken.weights(
        method
    )


def test_a_killed_run_goes_on_bitwise_equal(experiment, unbroken):
    process = subprocess.Popen(experiment.command(), stderr=subprocess.DEVNULL)
    while process.poll() is None and not experiment.checkpoints():
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
    assert not (experiment.run_folder() / "finished.json").exists()
    done = subprocess.run(experiment.command(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert same(experiment, unbroken)


def test_what_a_kill_left_half_written_goes_and_the_journal_tells_of_every_start(experiment):
    with pytest.raises(Interrupted):
        experiment.train(stopped=StopAfter(45))
    folder = experiment.run_folder()
    left = [folder / "checkpoints/.iteration-000002.abc.tmp", folder / ".final.abc.tmp", folder / ".best.abc.old/old"]
    for path in left:
        path.mkdir(parents=True)
    experiment.train()
    assert not any(path.exists() for path in left)
    journal = (folder / "train.log").read_text()
    assert journal.count("iteration 3 of 3: success") == 1
    for said in ("seed0: process", ": starts", "ended: Interrupted", ": goes on from", "finished"):
        assert said in journal


def test_metrics_that_are_lost_are_said_to_be(experiment):
    with pytest.raises(Interrupted):
        experiment.train(stopped=StopAfter(45))
    (experiment.run_folder() / "metrics.jsonl").unlink()
    experiment.train()
    assert "metrics.jsonl lacks " in (experiment.run_folder() / "train.log").read_text()


def test_a_checkpoint_that_is_not_whole_is_no_reason_to_start_anew(experiment):
    with pytest.raises(Interrupted):
        experiment.train(stopped=StopAfter(45))
    for state in experiment.run_folder().glob("checkpoints/*/state.json"):
        state.unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded: FileNotFoundError: no state.json"):
        experiment.train()


def test_progress_goes_to_the_error_stream_where_there_is_no_terminal(experiment):
    done = subprocess.run(experiment.command(), capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "iteration 2 of 3: success" in line], done.stderr


def test_a_start_that_was_changed_is_refused(experiment):
    [record] = experiment.folder.glob("results/shop/start/**/checkpoint.json")
    (record.parent / "generation_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="was changed after it was made: its hash is"):
        experiment.train()


def test_sigterm_saves_and_leaves_with_code_75(experiment, unbroken):
    process = subprocess.Popen(experiment.command(), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not experiment.checkpoints():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    _, message = process.communicate()
    assert process.returncode == 75, message
    assert "stopped by SIGTERM after" in message and "run the same command again" in message
    experiment.train()
    assert same(experiment, unbroken)


@pytest.mark.parametrize("looks", [1, 3, 12, 30, 45, 55])
def test_stopped_anywhere_it_goes_on_bitwise_equal(experiment, unbroken, looks):
    """Also in the middle of a rollout, between phases, and in a validation."""
    with pytest.raises(Interrupted, match="of 3 iterations; saved"):
        experiment.train(stopped=StopAfter(looks), checkpoint_every=2)
    experiment.train(checkpoint_every=2)
    assert same(experiment, unbroken)


def test_a_finished_run_is_left_alone(experiment, unbroken):
    experiment.train()
    experiment.train()
    assert same(experiment, unbroken)
    assert experiment.checkpoints() == ["iteration-000002", "iteration-000003"]


def test_another_configuration_is_refused_with_the_difference(experiment):
    experiment.train(iterations=1)
    with pytest.raises(ConfigError, match=r"training.clip: was 0.2, now 0.3") as caught:
        experiment.train(iterations=1, clip=0.3)
    assert "--allow-config-change" in str(caught.value)
    experiment.train(iterations=2, clip=0.3, allow=True)
    assert len(experiment.metrics()) == 2


def test_a_full_disk_loses_nothing(experiment, unbroken, monkeypatch):
    real, written = torch.save, []

    def full(*arguments, **options):
        written.append(1)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"could not be written \(.* GiB are free there\).*No space left"):
        experiment.train()
    assert experiment.checkpoints() == ["iteration-000001", "iteration-000002"]
    assert not list((experiment.run_folder() / "checkpoints").glob(".*"))
    monkeypatch.undo()
    experiment.train()
    assert same(experiment, unbroken)


def test_an_engine_that_returns_nan_loses_no_iteration(experiment, unbroken, monkeypatch):
    real = TransformersEngine.poll

    def broken(engine):
        if engine.version < 1:
            return real(engine)
        return [
            type(c)(c.id, c.token_ids, [float("nan")] * len(c.log_probs), c.finish, c.version) for c in real(engine)
        ]

    monkeypatch.setattr(TransformersEngine, "poll", broken)
    with pytest.raises(HgpoError, match="log-probability that is not finite"):
        experiment.train(checkpoint_every=0)
    assert experiment.checkpoints() == ["iteration-000001"]
    monkeypatch.undo()
    experiment.train(checkpoint_every=0)
    assert same(experiment, unbroken)


def test_a_damaged_checkpoint_is_named(experiment):
    experiment.train(iterations=2)
    newest = experiment.run_folder() / "checkpoints" / "iteration-000002"
    (newest / "learner.pt").write_bytes(b"cut off")
    with pytest.raises(CheckpointError, match="iteration-000002 cannot be loaded") as caught:
        experiment.train(iterations=3, allow=True)
    assert "goes on from the one before" in str(caught.value)


def test_the_best_policy_is_kept_and_training_stops_when_nothing_gets_better(experiment):
    folder = experiment.train(iterations=6, validate_every=1, early_stopping=2, learning_rate=1e-9)
    assert len(experiment.metrics()) == 3  # the first validation is the best, two more are no better
    assert all("validation/success" in line for line in experiment.metrics())
    model, tokenizer = load_policy(folder / "best")
    assert model.get_input_embeddings().num_embeddings >= len(tokenizer)
    assert '"iteration": 0' in (folder / "best" / "best.json").read_text()


def test_a_run_that_another_process_trains_is_left_alone(experiment):
    folder = experiment.folder / "results/shop/runs/tiny/webshop/hgpo/K1/seed0"
    folder.mkdir(parents=True, exist_ok=True)
    before = sorted(path.name for path in folder.iterdir())
    hold = (
        "import sys, time; from filelock import FileLock; l = FileLock(sys.argv[1]); l.acquire(); print(1, flush=True)"
    )
    hold += "; time.sleep(60)"
    command = [sys.executable, "-c", hold, str(folder / ".train.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(HgpoError, match="tiny/webshop/hgpo/K1/seed0 is being trained by another process"):
            experiment.train()
        other.kill()
    assert sorted({path.name for path in folder.iterdir()} - {".train.lock"}) == before
    experiment.train()
    assert json.loads((folder / "finished.json").read_text())["hardware"]["processor"]


def stop_in_the_first_validation(monkeypatch) -> None:
    real, asked = Trainer._validate, []

    def stopped(trainer, iteration):
        asked.append(iteration)
        if len(asked) == 1:
            trainer.stopped.received = "SIGTERM"
        return real(trainer, iteration)

    monkeypatch.setattr(Trainer, "_validate", stopped)


def test_a_validation_is_made_up_for_once_and_its_line_has_all_times(experiment, unbroken, monkeypatch):
    stop_in_the_first_validation(monkeypatch)
    with pytest.raises(Interrupted):
        experiment.train()
    state = experiment.run_folder() / "checkpoints/iteration-000002/state.json"
    assert json.loads(state.read_text())["progress"]["unvalidated"]["iteration"] == 1
    real = Trainer.iterate

    def killed(trainer, iteration):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "iterate", killed)
    with pytest.raises(KeyboardInterrupt):
        experiment.train()
    progress = json.loads(state.read_text())["progress"]
    assert not progress["unvalidated"] and progress["best"]["iteration"] == 1
    monkeypatch.setattr(Trainer, "iterate", real)
    experiment.train()
    assert same(experiment, unbroken)
    lines = [json.loads(line) for line in (experiment.run_folder() / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        phases = {key: seconds for key, seconds in line.items() if key.startswith("time/") and key != "time/total"}
        assert {"time/rollout", "time/update", "time/validation"} <= phases.keys() and line["tokens_per_s"] > 0
        assert line["time/total"] >= line["time/rollout"] + line["time/validation"]
    assert "lacks" not in (experiment.run_folder() / "train.log").read_text()


def test_a_configuration_that_was_allowed_once_is_the_runs_own(experiment):
    experiment.train(iterations=1)
    experiment.train(iterations=1, clip=0.3, allow=True)
    experiment.train(iterations=1, clip=0.3)


def test_damaged_lines_of_metrics_are_left_out(tmp_path):
    lines = [b'{"iteration": 0}', b"5", b"\xff\xfe", b'{"iteration": "1"}', b'{"iteration": 1}', b'{"iteration": 1}']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*lines, b'{"iteration": 3}', b'{"itera']))
    log = MetricsLog(tmp_path, 3)
    assert log.lost == 1 and log._board is not None
    log.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"iteration": 0}\n{"iteration": 1}\n'


def test_a_run_whose_reader_is_gone_saves_and_leaves_with_code_75(experiment):
    def with_terminal() -> None:  # the tests may run under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    command = experiment.command(iterations=1000)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=with_terminal)
    assert process.stderr is not None
    process.stderr.close()
    while process.poll() is None and not experiment.checkpoints():
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 75
    journal = (experiment.run_folder() / "train.log").read_text()
    assert "stopped by SIGHUP" in journal


def test_nohup_stays_in_force(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stopped:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopped()
    finally:
        signal.signal(signal.SIGHUP, before)
