"""What the workflow plans, before any job runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import yaml

from hgpo.cli.config import schema_text
from hgpo.config import load_config, plan_left_out, plan_runs
from hgpo.config.experiment import parse_config

from .conftest import ROOT, Snakemake

STAGES = ["container", "prepare_data", "check_environment", "warm_start", "train", "evaluate"]
SMALL = {"evaluate", "tables", "figures", "viewer"}
STAGES += ["tables", "figures", "report", "manifest", "viewer", "all"]


def planned(output: str) -> dict[str, int]:
    """Number of jobs by rule, from the table that a dry run prints."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, flags=re.MULTILINE)}


def test_dry_run_lists_one_job_for_each_run_and_evaluation(snakemake: Snakemake) -> None:
    result = snakemake("-n", "--configfile", "config/demo.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
    jobs = planned(result.stdout + result.stderr)
    config = load_config(ROOT / "config/demo.yaml")
    runs = plan_runs(config)
    starts = {(run.model, run.environment, run.history) for run in runs}
    splits = {name: len(config.environment(name).evaluation_splits) for name in config.matrix.environments}
    evaluated = [run.environment for run in runs] + [environment for _, environment, _ in starts]
    assert set(STAGES) <= set(jobs)
    assert jobs["train"] == len(runs)
    assert jobs["warm_start"] == len(starts)
    assert jobs["prepare_data"] == len(config.matrix.environments)
    assert jobs["evaluate"] == len(config.evaluation.seeds) * sum(splits[name] for name in evaluated)


def test_the_default_configuration_is_the_papers_matrix(snakemake: Snakemake) -> None:
    result = snakemake("-n")
    text = result.stdout + result.stderr
    assert result.returncode == 0, text
    config = load_config(ROOT / "config/config.yaml")
    runs, left_out = plan_runs(config), plan_left_out(config)
    assert {(run.model, config.models[run.model].gpus) for run in runs} == {
        ("qwen2.5-1.5b-instruct", 2),
        ("qwen2.5-7b-instruct", 4),
    }
    cells = {(run.model, run.environment, run.method, run.history) for run in [*runs, *left_out]}
    methods = ("hgpo", "gigpo", "grpo", "rloo", "ppo")
    assert cells == set(product(config.models, ("alfworld", "webshop"), methods, (2, 4)))
    assert not left_out
    jobs = planned(text)
    assert jobs["train"] == len(runs)
    assert jobs["fetch_model"] == 2


def test_a_cell_that_cannot_be_done_is_left_out_and_named(workspace: Path, snakemake: Snakemake) -> None:
    body = yaml.safe_load((workspace / "config/config.yaml").read_text())
    body["training"]["lora"] = {"rank": 8}
    (workspace / "config/adapters.yaml").write_text(yaml.safe_dump(body))
    left_out = plan_left_out(parse_config(body))
    assert {reason.split(":")[0] for reason in left_out.values()} == {"method ppo", "training.lora"}
    assert plan_runs(parse_config(body))
    result = snakemake("-n", "--configfile", "config/adapters.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
    for run, reason in left_out.items():
        assert f"{run}: {reason}" in result.stdout + result.stderr


def test_a_matrix_without_a_run_that_can_be_done_is_an_error(workspace: Path, snakemake: Snakemake) -> None:
    body = yaml.safe_load((workspace / "config/config.yaml").read_text())
    body["matrix"] |= {"methods": ["ppo"], "baselines": []}
    body["training"]["lora"] = {"rank": 8}
    (workspace / "config/wrong.yaml").write_text(yaml.safe_dump(body))
    result = snakemake("-n", "--configfile", "config/wrong.yaml")
    assert result.returncode != 0
    assert "the critic of ppo starts from a whole policy" in result.stdout + result.stderr


@pytest.mark.parametrize("file", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("config/**/*.yaml")))
def test_every_shipped_configuration_is_valid(file: str) -> None:
    assert plan_runs(load_config(ROOT / file))


def test_schema_is_the_one_of_the_typed_configuration() -> None:
    stored = (ROOT / "workflow/schemas/config.schema.json").read_text(encoding="utf-8")
    assert stored == schema_text(), "run `make schema`"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("matrix:\n  models: [tiny]\n  methods: [hgpoo]\n", ["matrix.methods", "'hgpoo'", "gigpo"]),
        ("matrix:\n  models: [tiny]\n  history: [-1]\n", ["matrix.history", "-1", "greater than or equal to 0"]),
        ("matrix:\n  models: [tiny]\n  k: [2]\n", ["'matrix.k'", "history"]),
        ("matrix:\n  models: [large]\n", ["matrix.models", "'large'", "tiny"]),
    ],
)
def test_a_wrong_key_or_value_fails_before_any_job(
    change: str, expected: list[str], workspace: Path, snakemake: Snakemake
) -> None:
    (workspace / "config/wrong.yaml").write_text("name: wrong\nmodels:\n  tiny: {}\n" + change)
    result = snakemake("--cores", "1", "--configfile", "config/wrong.yaml")
    output = result.stdout + result.stderr
    assert result.returncode != 0
    assert "config/wrong.yaml" in output
    for part in expected:
        assert part in output
    assert "Traceback" not in output
    assert not (workspace / "results").exists()


def test_every_rule_is_one_command_with_log_benchmark_threads_resources_and_message() -> None:
    for file in sorted((ROOT / "workflow/rules").glob("*.smk")):
        for name, body in re.findall(r"^rule (\w+):\n((?:    .*\n|\n)+)", file.read_text(), flags=re.MULTILINE):
            if name in SMALL:
                assert "group:" in body, f"rule {name} shares no Slurm job"
            for part in ("log", "benchmark", "threads", "resources", "message", "mem_mb=", "runtime=", "gpu="):
                assert part in body, f"rule {name} in {file.name} has no {part}"
            assert len(re.findall(r"\bhgpo [a-z-]+", body)) == 1, f"rule {name} is not one command"


def test_the_graph_can_be_drawn(snakemake: Snakemake) -> None:
    result = snakemake("--configfile", "config/demo.yaml", "--rulegraph")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("digraph")
    for stage in STAGES:
        assert f'"{stage}"' in result.stdout


def test_an_edited_estimator_is_trained_again(workspace: Path) -> None:
    config = load_config(ROOT / "config/miniature.yaml")
    run = next(run for run in plan_runs(config) if run.method == "hgpo")
    finished = workspace / run.folder(config) / "finished.json"
    order = [config.data_folder(run.environment) / "prepared.json", config.folder / f"checks/{run.environment}.json"]
    for path in (workspace / path for path in (*order, run.start_folder(config) / "checkpoint.json")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    shutil.copytree(ROOT / "src", workspace / "src")
    python, command = workspace / "bin/python", workspace / "bin/hgpo"  # the rules call the one beside the other
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    command.write_text(f"#!/bin/sh\nmkdir -p {finished.parent}\necho {{}} > {finished}\n")
    command.chmod(0o755)
    search = os.pathsep.join([str(workspace / "src"), *(path for path in sys.path if path.endswith("site-packages"))])

    def snakemake(*options: str) -> str:
        what = [str(finished.relative_to(workspace)), "--cores", "1", "--configfile", "config/miniature.yaml", *options]
        environment = os.environ | {"PYTHONPATH": search}
        done = subprocess.run(
            [str(python), "-m", "snakemake", *what], cwd=workspace, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert planned(snakemake())["train"] == 1
    assert "Nothing to be done" in snakemake("-n")
    with open(workspace / "src/hgpo/advantages/hgpo.py", "a") as stream:
        stream.write("EDITED = True\n")
    jobs = planned(snakemake("-n"))
    assert jobs.get("train") == 1 and "warm_start" not in jobs
