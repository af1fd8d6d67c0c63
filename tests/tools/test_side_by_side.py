"""Runs side by side on one machine: a time limit saves, the next call goes on, results are packed."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from hgpo.config import plan_runs
from hgpo.errors import ConfigError
from hgpo.evaluation.store import read_metadata

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools/side_by_side.py"


def load_tool(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


tool = load_tool(TOOL)

SHOP = {
    "name": "shop",
    "data": {"directory": "data"},
    "models": {
        "tiny": {
            "embedded": {
                "hidden_size": 64,
                "layers": 1,
                "heads": 2,
                "key_value_heads": 1,
                "intermediate_size": 64,
                "vocabulary": 600,
            }
        }
    },
    "matrix": {"models": ["tiny"], "environments": ["webshop"], "methods": ["hgpo", "grpo"], "history": [1]},
    "environments": {
        "webshop": {
            "max_steps": 6,
            "agent": {
                "template": "webshop-compact-v1",
                "max_prompt_tokens": 320,
                "max_response_tokens": 8,
                "chat": False,
            },
        }
    },
    "warm_start": {"demonstrations": 2, "epochs": 1},
    "training": {
        "iterations": 2,
        "tasks_per_iteration": 2,
        "rollouts_per_task": 2,
        "mini_batch_steps": 12,
        "validate_every": 0,
        "episodes_every": 1,
    },
    "evaluation": {"seeds": [1], "limit": 3},
    "tracking": {"tensorboard": False},
}


def call(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--config", "shop.yaml", "--gpus", "0", "--per-gpu", "2", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def unpacked(folder: Path, name: str, into: Path | None = None) -> list[str]:
    content = b"".join(piece.read_bytes() for piece in sorted(folder.glob(f"{name}*")))
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as archive:
        if into:
            archive.extractall(into, filter="data")
        return archive.getnames()


def test_a_call_that_is_out_of_time_says_so_and_the_next_does_the_rest(tmp_path):
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(SHOP))
    first = call(tmp_path, "--minutes", str((tool.PACKING_S + tool.SAVING_S + 1) / 60), "--out", "first")
    assert first.returncode == tool.STOPPED, first.stdout
    assert "not done: train-tiny-webshop-hgpo-K1-seed0" in first.stdout
    assert "shop/config.yaml" in unpacked(tmp_path / "first", "results.tar.xz")

    second = call(
        tmp_path, "--runs", "hgpo/1/0", "--set", "training.iterations=1", "--out", "second", "--piece-mb", "1"
    )
    assert second.returncode == 0, second.stdout
    results = tmp_path / "results/shop"
    run = results / "runs/tiny/webshop/hgpo/K1/seed0"
    assert json.loads((run / "finished.json").read_text())["iterations"] == 1
    assert sorted(path.parts[-5] for path in results.glob("episodes/*/*/*/*/*/*/seed1.parquet")) == [
        "hgpo",
        "warm_start",
    ]
    assert not (results / "runs/tiny/webshop/grpo").exists()
    elsewhere = tmp_path / "elsewhere"
    names = unpacked(tmp_path / "second", "results.tar.xz", elsewhere / "results")
    assert "shop/start/tiny/webshop/K1/checkpoint.json" in names
    assert "shop/runs/tiny/webshop/hgpo/K1/seed0/metrics.jsonl" in names
    assert not any(name.endswith((".safetensors", ".pt")) for name in names)
    steps = unpacked(tmp_path / "second", "steps.tar.xz", elsewhere / "results")
    assert steps and all("rollouts" in name or name.endswith(".steps.parquet") for name in steps)
    for command in (["tables"], ["manifest"], ["verify"]):  # on what was packed, without weights and data
        line = [sys.executable, "-m", "hgpo", *command, "--config", "results/shop/config.yaml"]
        done = subprocess.run(line, cwd=elsewhere, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "not here, not checked: the checkpoint results/shop/runs/tiny/webshop/hgpo/K1/seed0/final" in done.stdout

    third = call(tmp_path, "--runs", "hgpo/1/0", "--set", "training.iterations=1")
    assert third.returncode == 0 and "begins" not in third.stdout


def test_training_that_does_not_end_in_time_is_evaluated_as_it_is(tmp_path):
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(SHOP))
    first = call(tmp_path, "--stages", "start", "train", "--runs", "hgpo/1/0", "--set", "training.iterations=1")
    assert first.returncode == 0, first.stdout
    results = tmp_path / "results/shop"
    (results / "runs/tiny/webshop/hgpo/K1/seed0/finished.json").unlink()
    second = call(
        tmp_path,
        *("--runs", "hgpo/1/0", "--set", "training.iterations=100000", "--allow-config-change"),
        *("--minutes", "6", "--evaluate-minutes", "5.6"),
    )
    assert second.returncode == tool.STOPPED, second.stdout
    assert "stopped: train-tiny-webshop-hgpo-K1-seed0 (saved)" in second.stdout
    assert "not done: train-tiny-webshop-hgpo-K1-seed0" in second.stdout
    played = results / "episodes/tiny/webshop/hgpo/K1/seed0/test/seed1.parquet"
    before = read_metadata(played)["checkpoint_hash"]

    done = len((results / "runs/tiny/webshop/hgpo/K1/seed0/metrics.jsonl").read_text().splitlines())
    longer = f"training.iterations={done + 1}"
    third = call(tmp_path, "--runs", "hgpo/1/0", "--set", longer, "--allow-config-change")
    assert third.returncode == 0, third.stdout
    finished = json.loads((results / "runs/tiny/webshop/hgpo/K1/seed0/finished.json").read_text())
    assert read_metadata(played)["checkpoint_hash"] == finished["checkpoint_hash"] != before
    aside = results / f"earlier/tiny/webshop/hgpo/K1/seed0/iteration-{done:06d}/test/seed1.parquet"
    assert read_metadata(aside)["checkpoint_hash"] == before


def test_a_job_that_fails_twice_is_reported_with_the_end_of_its_log(tmp_path):
    broken = SHOP | {"data": {"directory": "data", "webshop": {"source": "mirror", "mirror": "nowhere"}}}
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(broken))
    failed = call(tmp_path)
    assert failed.returncode == 1
    assert failed.stdout.count("failed with") == 2 and "nowhere" in failed.stdout


def test_runs_are_named_by_patterns_in_the_order_of_importance():
    config = tool.parse_config(SHOP)
    runs = tool.chosen(plan_runs(config), ["grpo/1/0", "*"])
    assert [run.method for run in runs] == ["grpo", "hgpo"]
    both = tool.parse_config(SHOP | {"matrix": SHOP["matrix"] | {"environments": ["alfworld", "webshop"]}})
    runs = tool.chosen(plan_runs(both), ["webshop/*", "alfworld/grpo/1/0"])
    assert [(run.environment, run.method) for run in runs] == [
        ("webshop", "hgpo"),
        ("webshop", "grpo"),
        ("alfworld", "grpo"),
    ]
    options = argparse.Namespace(runs=["webshop/*", "*"], stages=["start"], per_gpu=3, processes=1)
    jobs = [job for job in tool.plan(both, Path("x.yaml"), options) if job.name.startswith("start")]
    assert [(job.name, job.slots) for job in jobs] == [("start-tiny-webshop-K1", 1), ("start-tiny-alfworld-K1", 1)]
    with pytest.raises(ConfigError, match="ppo/1/0"):
        tool.chosen(plan_runs(config), ["ppo/1/0"])


def test_the_gpus_are_those_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    tell = [sys.executable, "-c", "import os; print('device', os.environ['CUDA_VISIBLE_DEVICES'])"]
    jobs = [
        tool.Job(name, tell, [tmp_path], slots=slots) for name, slots in (("first", 1), ("second", 1), ("without", 0))
    ]
    assert tool.Table(jobs, tmp_path, gpus=2, per_gpu=1, end=tool.time.monotonic() + 600).work() == 0
    logs = [tmp_path / f"{name}.log" for name in ("first", "second", "without")]
    assert [log.read_text().strip() for log in logs] == ["device 3", "device 1", "device"]


def test_pieces_joined_are_the_archive(tmp_path):
    content = bytes(range(256)) * 10_000
    tool.write_pieces(tmp_path / "a", content, piece_mb=1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.00", "a.01", "a.02"]
    assert b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir())) == content


def test_rotary_dimensions_in_pairs_become_halves():
    convert = load_tool(ROOT / "tools/convert_gguf.py")
    rows = np.array(["x0", "y0", "x1", "y1", "X0", "Y0", "X1", "Y1"])[:, None]  # two heads of two pairs
    assert convert.pairs_to_halves(rows, 2)[:, 0].tolist() == ["x0", "x1", "y0", "y1", "X0", "X1", "Y0", "Y1"]
