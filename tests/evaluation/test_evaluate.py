"""Evaluation of a checkpoint: every task once, whatever interrupts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
from shop import TASKS, Shop, assert_same, tables

from hgpo.config import Run, load_config
from hgpo.envs.panels import verified_panel
from hgpo.errors import CheckpointError, ConfigError, DataError
from hgpo.evaluation.store import EpisodeStore, read_metadata
from hgpo.rollout.policy import policy_hash

pytestmark = pytest.mark.usefixtures("checkpoint")


@pytest.fixture(scope="module")
def unbroken(prepared_shop, checkpoint, tmp_path_factory):
    return Shop(prepared_shop.folder, tmp_path_factory.mktemp("unbroken")).evaluate()


def stop_after(monkeypatch, appends: int) -> list[int]:
    """Interrupts the evaluation before batch number `appends` is kept; returns the sizes of the batches kept."""
    kept: list[int] = []
    original = EpisodeStore.append

    def append(self, episodes, wall_s):
        if len(kept) == appends:
            raise KeyboardInterrupt
        kept.append(len(episodes))
        original(self, episodes, wall_s)

    monkeypatch.setattr(EpisodeStore, "append", append)
    return kept


def test_every_task_of_the_panel_once_also_in_a_ragged_last_batch(shop, unbroken, monkeypatch):
    config = load_config(shop.config())
    tasks = [task.id for task in verified_panel(config.data_folder("webshop"), "webshop", "test").tasks[:TASKS]]
    assert sorted(tasks) == tables(unbroken)[0]["task"].tolist()
    kept = stop_after(monkeypatch, 99)
    assert_same(shop.evaluate(), unbroken)
    assert kept == [2, 2, 1]


def test_the_record_says_what_was_evaluated_and_how(shop, unbroken):
    record = read_metadata(unbroken)
    assert record["checkpoint_hash"] == policy_hash(shop.checkpoint)
    assert record["prompt"]["template"] == "webshop-compact" and record["engine"] == "transformers"
    assert record["sampling"]["temperature"] == 0.4 and record["panel_size"] == TASKS
    assert record["prompt_tokens"] == tables(unbroken)[0]["prompt_tokens"].sum() > 0
    assert record["packages"]["torch"] and record["commit"] and record["wall_s"] > 0
    assert record["hardware"]["processor"] and record["hardware"]["vectors"]


def test_another_seed_gives_other_episodes(shop, unbroken):
    other = tables(shop.evaluate(seed=2))[1]
    assert other["completion"].tolist() != tables(unbroken)[1]["completion"].tolist()


def test_resumed_amid_a_split_it_gives_equal_episodes(shop, unbroken, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 1)
        shop.evaluate()
    kept = stop_after(monkeypatch, 99)
    assert_same(shop.evaluate(), unbroken)
    assert kept == [2, 1]  # the first batch was not played again


def test_resumed_with_another_batch_size_each_task_is_still_played_once(shop, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 1)
        shop.evaluate()
    kept = stop_after(monkeypatch, 99)
    path = shop.evaluate(batch_size=3)
    assert kept == [1, 2] and tables(path)[0]["task"].is_unique


KILLED = """
import os, signal, sys
from hgpo.cli import main
from hgpo.evaluation.store import EpisodeStore

append = EpisodeStore.append

def die_in_the_third(self, episodes, wall_s):
    if len(self.done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, episodes, wall_s)

EpisodeStore.append = die_in_the_third
main(sys.argv[1:])
"""


def test_killed_and_run_again_it_gives_equal_episodes(shop, prepared_shop, tmp_path):
    path = shop.config(batch_size=1)
    out = Run("tiny", "webshop", "hgpo", 2, 0).episodes(load_config(path), "test", 1)
    parts = out.with_name(out.name + ".parts")
    command = ["evaluate", str(shop.checkpoint), "--config", str(path), "--model", "tiny", "--environment", "webshop"]
    command += ["--method", "hgpo", "--history", "2", "--split", "test", "--seed", "1"]
    process = subprocess.run(
        [sys.executable, "-c", KILLED, *command], capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    assert not out.exists() and len(list(parts.glob("0*.json"))) == 2
    reference = Shop(prepared_shop.folder, tmp_path / "reference").evaluate(batch_size=1)
    assert_same(shop.evaluate(batch_size=1), reference)
    assert not parts.exists()


def test_the_result_does_not_depend_on_workers(shop, unbroken):
    assert_same(shop.evaluate(workers=2), unbroken)


@pytest.fixture
def interrupted(shop, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 1)
        shop.evaluate()
    return shop


def other_checkpoint(shop, folder):
    """A copy with one weight changed."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(shop.checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_another_checkpoint_does_not_go_on_with_it(interrupted, tmp_path):
    with pytest.raises(DataError, match="another evaluation: checkpoint_hash: .* there, .* here"):
        interrupted.evaluate(checkpoint=other_checkpoint(interrupted, tmp_path / "other"))


def test_another_panel_does_not_go_on_with_it(interrupted):
    with pytest.raises(DataError, match="another evaluation: panel: test there, eval here; panel_hash: "):
        interrupted.evaluate(splits={"test": "eval"})


def test_a_changed_panel_is_refused(shop, tmp_path):
    shutil.copytree(shop.folder, tmp_path / "copy")
    panel = tmp_path / "copy/data/webshop/panels/test.json"
    body = json.loads(panel.read_text())
    body["tasks"] = body["tasks"][::-1]
    panel.write_text(json.dumps(body))
    with pytest.raises(DataError, match="test"):
        Shop(tmp_path / "copy", tmp_path / "results").evaluate()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-50]),
            "cannot be loaded",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "no weights in"),
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "its tokenizer cannot be loaded"),
        (lambda f: (f / "checkpoint.json").write_text("{"), "checkpoint.json cannot be read"),
    ],
)
def test_a_corrupt_checkpoint_is_named_and_nothing_is_written(shop, tmp_path, damage, said):
    broken = shutil.copytree(shop.checkpoint, tmp_path / "broken")
    damage(broken)
    with pytest.raises(CheckpointError, match=said) as error:
        shop.evaluate(checkpoint=broken)
    assert "broken" in error.value.message
    assert not list(shop.results.rglob("*.parquet"))


def test_the_checkpoint_of_another_run_is_refused(shop, tmp_path):
    other = shutil.copytree(shop.checkpoint, tmp_path / "run/final")
    stated = Run("tiny", "webshop", "grpo", 2, 0)
    (tmp_path / "run/finished.json").write_text(json.dumps({"run": asdict(stated)}))
    with pytest.raises(CheckpointError, match="of the run tiny/webshop/grpo/K2/seed0, not of tiny/webshop/hgpo"):
        shop.evaluate(checkpoint=other)
    assert shop.evaluate("grpo", checkpoint=other).exists()


def test_a_warm_start_is_evaluated_as_what_it_is(shop, tmp_path):
    start = shutil.copytree(shop.checkpoint, tmp_path / "start")
    (start / "checkpoint.json").write_text(json.dumps({"model": "tiny", "environment": "webshop", "history": 2}))
    with pytest.raises(CheckpointError, match="is the warm start of tiny/webshop with K=2"):
        shop.evaluate(checkpoint=start)
    assert shop.evaluate("warm_start", checkpoint=start).exists()


@pytest.mark.parametrize("method", ["hgpo", "warm_start"])
def test_a_checkpoint_that_is_not_what_its_record_says_is_refused(shop, tmp_path, method):
    folder = other_checkpoint(shop, tmp_path / "run/final")
    if method == "hgpo":
        record = {"run": asdict(Run("tiny", "webshop", "hgpo", 2, 0)), "checkpoint": "final"}
        file, key = tmp_path / "run/finished.json", "checkpoint_hash"
    else:
        record, file, key = (
            {"model": "tiny", "environment": "webshop", "history": 2},
            folder / "checkpoint.json",
            "hash",
        )
    file.write_text(json.dumps(record | {key: policy_hash(shop.checkpoint)}))
    with pytest.raises(CheckpointError, match="final was changed after it was made: its hash is"):
        shop.evaluate(method, checkpoint=folder)
    assert not list(shop.results.rglob("*.parquet"))
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(CheckpointError, match="was changed after it was made"):
        shop.evaluate(method, checkpoint=tmp_path / "link")
    for broken in ("3", "[]", '{"run": {}}' if method == "hgpo" else "{}"):
        file.write_text(broken)
        with pytest.raises(CheckpointError, match=f"{file.name} cannot be read"):
            shop.evaluate(method, checkpoint=folder)
    file.write_text(json.dumps(record | {key: policy_hash(folder)}))
    assert shop.evaluate(method, checkpoint=folder).exists()


def test_damaged_notes_of_an_interrupted_evaluation_are_named(interrupted):
    (found,) = interrupted.results.rglob("metadata.json")
    found.write_text("[]")
    with pytest.raises(DataError, match=r"metadata\.json is not readable") as error:
        interrupted.evaluate()
    assert f"delete {found.parent} " in str(error.value)


def test_what_is_missing_is_said(shop):
    with pytest.raises(ConfigError, match="no checkpoint to evaluate as grpo"):
        shop.evaluate("grpo")
    config = load_config(shop.config())
    from hgpo.evaluation.evaluate import evaluate

    with pytest.raises(ConfigError, match="evaluation_splits has no 'valid'"):
        evaluate(config, Run("tiny", "webshop", "hgpo", 2, 0), shop.checkpoint, "valid", 1, shop.results / "x.parquet")
    with pytest.raises(ConfigError, match="unknown model 'huge'; known are tiny"):
        evaluate(config, Run("huge", "webshop", "hgpo", 2, 0), shop.checkpoint, "test", 1, shop.results / "x.parquet")
