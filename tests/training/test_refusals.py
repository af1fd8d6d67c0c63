"""Runs that cannot be done, or gone on with, are refused with what is wrong and what mends it."""

from __future__ import annotations

import json
import shutil

import pytest

from hgpo.advantages import source
from hgpo.config import Run, estimator_identity, load_config
from hgpo.errors import CheckpointError, ConfigError
from hgpo.training.loop import train
from hgpo.training.signals import StopSignal


@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        ("nope", "hgpo", "--model: unknown model 'nope'\n.*tiny"),
        ("tiny", "nope", "--method: unknown method 'nope'\n.*grpo"),
    ],
)
def test_unknown_names_are_refused_before_any_folder_is_made(experiment, model, method, said):
    config = load_config(experiment.config())
    with pytest.raises(ConfigError, match=said):
        train(config, Run(model, "webshop", method, 1, 0), StopSignal())
    assert not (experiment.folder / "results/shop/runs").exists()


def test_a_missing_start_is_said_with_the_command_that_makes_it(experiment):
    [record] = experiment.folder.glob("results/shop/start/**/checkpoint.json")
    shutil.rmtree(record.parent)
    with pytest.raises(CheckpointError, match="hgpo warm-start --model tiny --environment webshop --history 1"):
        experiment.train()


def test_a_run_whose_estimator_was_edited_is_not_called_finished(experiment, monkeypatch):
    experiment.train(iterations=1)
    with monkeypatch.context() as edited:
        edited.setattr(source.inspect, "getsource", lambda module: f"another = {module.__name__!r}")
        with pytest.raises(ConfigError, match=r"estimator_source: was '\w+', now '\w+'\n.* delete .* to train anew"):
            experiment.train(iterations=1)
    state = experiment.run_folder() / "checkpoints/iteration-000001/state.json"
    body = json.loads(state.read_text())
    assert body["identity"]["estimator_options"]["alpha"] == 1.0
    for key in ("estimator_options", "estimator_source"):  # as checkpoints were before
        del body["identity"][key]
    state.write_text(json.dumps(body))
    experiment.train(iterations=1)


def test_the_code_of_an_estimator_is_its_module_and_what_it_computes_with(experiment, monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(source.inspect, "getsource", lambda module: seen.append(module.__name__) or "")
    estimator_identity(load_config(experiment.config()), "hgpo", "webshop", 1)
    names = {name.removeprefix("hgpo.advantages.") for name in seen}
    assert {"hgpo", "returns", "groups"} <= names and not names & {"options", "registry", "ppo"}


def test_words_about_the_code_of_an_estimator_do_not_count():
    plain = 'def f(x):\n    return "a" + x\n'
    worded = '"""About it."""\n\ndef f(x):  # twice\n    """What it does."""\n    return ("a"\n        + x)\n'
    assert source.code_of(plain) == source.code_of(worded) != source.code_of(plain.replace('"a"', '"b"'))


def test_early_stopping_without_a_validation_task_is_refused(experiment, monkeypatch):
    monkeypatch.setattr("hgpo.training.plan.hold_out", lambda panel, count: (panel, None))
    with pytest.raises(ConfigError, match="early_stopping needs validations, but of the"):
        experiment.train(early_stopping=1)
    experiment.train(iterations=1)
    assert "validates on 0 tasks, not 2" in (experiment.run_folder() / "train.log").read_text()


def test_checkpoints_elsewhere_belong_to_one_results_folder(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINTS_DIR", str(tmp_path / "scratch"))
    experiment.train(iterations=1)
    assert list(tmp_path.glob("scratch/shop/**/iteration-000001"))
    other = experiment.other(tmp_path / "other")
    with pytest.raises(CheckpointError, match="are those of .*results/shop/runs.*, not of .*other/results"):
        other.train(iterations=1)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("learner.pt", lambda body: body[:-1] + b"x", "learner.pt is not what was written"),
        (
            "state.json",
            lambda body: body.replace(b'"iteration": 1,', b'"iteration": 7,'),
            "iteration in state.json is 7",
        ),
        ("state.json", lambda body: body.replace(b'"iteration": 1,', b'"iteration": "1",'), "in state.json is '1'"),
        ("state.json", lambda body: body.replace(b'"best": {}', b'"best": []'), r"best in state.json is \[\]"),
        ("state.json", lambda body: b"5", "it holds no JSON object"),
    ],
)
def test_a_changed_checkpoint_is_named(experiment, file, change, said):
    experiment.train(iterations=1, validate_every=0)
    path = experiment.run_folder() / "checkpoints/iteration-000001" / file
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    with pytest.raises(CheckpointError, match=f"iteration-000001 cannot be loaded: .*{said}"):
        experiment.train(iterations=1, validate_every=0)


def test_folders_of_other_names_are_no_checkpoints(experiment):
    experiment.train(iterations=1)
    folder = experiment.run_folder() / "checkpoints"
    shutil.copytree(folder / "iteration-000001", folder / "iteration-000002.bak")
    (folder / "iteration-junk").mkdir()
    experiment.train(iterations=1)
    assert experiment.checkpoints() == ["iteration-000001", "iteration-000002.bak", "iteration-junk"]
