"""The warm start: expert episodes that do not depend on who plays them, and the choice among policies."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import yaml

from hgpo.config import WarmStart, load_config
from hgpo.envs.panels import verified_panel
from hgpo.errors import ConfigError
from hgpo.rollout.policy import load_policy
from hgpo.training import candidates
from hgpo.training.batches import Row
from hgpo.training.experts import Stage, play_demonstrations
from hgpo.training.warm_start import fine_tune, make_start


def test_expert_episodes_do_not_depend_on_the_number_of_processes(prepared):
    config = load_config(prepared.config())
    folder = config.data_folder("webshop")
    tasks = verified_panel(folder, "webshop", "train").tasks[:3]
    stage = Stage("webshop", folder, tasks, 8, WarmStart(noise=0.5, hesitation=0.2, seed=1))
    alone = play_demonstrations(stage, 10, workers=0)
    assert play_demonstrations(stage, 10, workers=2) == alone
    assert [d.task for d in alone] == [tasks[n % 3].id for n in range(10)]


def test_fine_tuning_moves_bfloat16_weights_by_steps_that_rounding_would_lose(prepared):
    start = load_config(prepared.config()).folder / "start/tiny/webshop/K1"
    moved = []
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = load_policy(start, dtype)
        before = [p.detach().float().clone() for p in model.parameters()]
        rows = [Row(list(range(5, 25)), list(range(30, 36))) for _ in range(40)]
        fine_tune(model, rows, WarmStart(epochs=1, learning_rate=1e-4, token_budget=30), tokenizer.pad_token_id)
        distance = sum(
            float((p.detach().float() - b).abs().sum()) for p, b in zip(model.parameters(), before, strict=True)
        )
        moved.append(distance)
    assert moved[1] == pytest.approx(moved[0], rel=0.1)


def with_target(experiment, tmp_path, **changes):
    body = yaml.safe_load(experiment.config().read_text())
    body["warm_start"] = {"demonstrations": 3, "epochs": 3, "target_success": 0.35, "candidates": 3}
    body["training"] |= changes
    path = tmp_path / "target.yaml"
    path.write_text(yaml.safe_dump(body))
    return load_config(path)


def test_the_policy_nearest_to_the_wanted_success_is_kept(experiment, tmp_path, monkeypatch):
    config, seen = with_target(experiment, tmp_path), []
    outcomes = iter([0.0, 0.4, 0.9])

    def success(self, model, tokenizer):
        seen.append([p.detach().clone() for p in model.parameters()])
        return next(outcomes)

    monkeypatch.setattr(candidates.Candidates, "_success", success)
    folder = tmp_path / "start"
    record = make_start(config, "tiny", "webshop", 1, folder)
    assert [tried["success"] for tried in record["candidates"]] == [0.0, 0.4, 0.9]
    assert record["chosen"] == record["candidates"][1]
    assert record["candidates"][-1]["updates"] == record["updates"]
    kept = list(load_policy(folder)[0].parameters())
    assert all(torch.equal(a, b) for a, b in zip(kept, seen[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept, seen[2], strict=True))
    assert json.loads((folder / "checkpoint.json").read_text()) == record
    assert record["hardware"]["processor"] and record["commit"]


def test_success_is_measured_by_playing_the_held_out_tasks(experiment, tmp_path):
    config = with_target(experiment, tmp_path)
    record = make_start(config, "tiny", "webshop", 1, tmp_path / "start")
    assert len(record["candidates"]) == 3
    assert all(tried["success"] in (0.0, 0.5, 1.0) for tried in record["candidates"])  # two tasks are held out
    shutil.rmtree(tmp_path / "start")
    assert make_start(config, "tiny", "webshop", 1, tmp_path / "start") == record


def test_a_wanted_success_needs_held_out_tasks(experiment, tmp_path):
    config = with_target(experiment, tmp_path, validation_tasks=0)
    with pytest.raises(ConfigError, match="training.validation_tasks"):
        make_start(config, "tiny", "webshop", 1, tmp_path / "start")
