"""What goes wrong on a machine: one clear message each, and nothing lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fake_results import make_results

from hgpo.cli import disk_is_full, main
from hgpo.config.experiment import ENVIRONMENTS, PANELS, load_config, parse_config
from hgpo.envs import environment_package
from hgpo.envs.panels import MERGED
from hgpo.errors import ConfigError

from .conftest import ROOT, Snakemake


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_one_message_and_nothing_is_lost(small_disk: Path) -> None:
    matrix = {"models": ["tiny"], "environments": ["alfworld"], "methods": ["hgpo", "grpo"], "history": [2]}
    config = make_results(small_disk, 6, 2, matrix=matrix, evaluation={"seeds": [1]}, training={"iterations": 3})
    command = [sys.executable, "-m", "hgpo", "tables", "--config", str(small_disk / "config.yaml")]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    tables = {path: path.read_bytes() for path in sorted((config.folder / "tables").iterdir())}
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as stream, pytest.raises(OSError):
        while True:
            stream.write(b"x" * 4096)

    full = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert full.returncode == 1
    assert "the disk or the quota is full" in full.stderr and "free space" in full.stderr
    assert "Traceback" not in full.stderr
    assert {path: path.read_bytes() for path in sorted((config.folder / "tables").iterdir())} == tables

    filler.unlink()
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    assert {path: path.read_bytes() for path in sorted((config.folder / "tables").iterdir())} == tables


def test_a_folder_that_cannot_be_written_to_is_one_message(small_disk: Path) -> None:
    make_results(small_disk, 6, 2, matrix={"models": ["tiny"], "environments": ["alfworld"], "history": [2]})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    command = [sys.executable, "-m", "hgpo", "tables", "--config", str(small_disk / "config.yaml")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 1
    assert re.match(rf"hgpo: {small_disk}\S* cannot be used: Read-only file system\n  mend: ", refused.stderr)
    assert "Traceback" not in refused.stderr


def test_a_quota_that_a_library_has_wrapped_is_found() -> None:
    error = RuntimeError("write failed")
    error.__cause__ = OSError(122, "Disk quota exceeded")
    assert disk_is_full(error)
    assert not disk_is_full(RuntimeError("something else"))


def test_an_image_that_is_not_the_named_one_stops_before_any_job(workspace: Path, snakemake: Snakemake) -> None:
    body = yaml.safe_load((workspace / "config/miniature.yaml").read_text())
    body["containers"] = {"enabled": True, "image": "env.sif"}
    (workspace / "config/wrong.yaml").write_text(yaml.safe_dump(body))
    (workspace / "env.sif").write_bytes(b"something else")
    (workspace / "env.sif.sha256").write_text("0" * 64 + "  env.sif\n")
    result = snakemake("--cores", "1", "--configfile", "config/wrong.yaml", "--sdm", "conda")
    text = result.stdout + result.stderr
    assert result.returncode != 0
    assert "env.sif is not the image that env.sif.sha256 names" in text
    assert "remove env.sif and env.sif.sha256 to build it anew" in " ".join(text.split())
    assert not (workspace / "data").exists()


def test_a_second_pipeline_in_the_folder_is_refused(workspace: Path, snakemake: Snakemake) -> None:
    locks = workspace / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").write_text("")
    (locks / "0.output.lock").write_text("results/miniature/report.html\n")
    result = snakemake("--cores", "1", "--configfile", "config/miniature.yaml")
    assert result.returncode != 0
    assert "Directory cannot be locked" in result.stdout + result.stderr
    assert not (workspace / "data").exists()


@pytest.mark.parametrize(
    ("section", "key", "values", "said"),
    [
        ("matrix", "methods", ["hgpo", "hgpo"], "methods: 'hgpo' is named twice"),
        ("matrix", "history", [1, 1], "history: 1 is named twice"),
        ("evaluation", "seeds", [5, 6, 5], "seeds: 5 is named twice"),
    ],
)
def test_what_would_count_twice_is_refused(section, key, values, said):
    body = yaml.safe_load((ROOT / "config" / "miniature.yaml").read_text())
    body.setdefault(section, {})[key] = values
    with pytest.raises(ConfigError, match=said):
        parse_config(body)


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        (
            "models",
            {
                "tiny": {
                    "dtype": "bfloat16",
                    "learner": {"kind": "deepspeed", "zero_stage": 0},
                    "placement": {"kind": "ray"},
                }
            },
            "models.tiny: `dtype: bfloat16` needs `learner.zero_stage: 1` or above",
        ),
        (
            "models",
            {"tiny": {"learner": {"kind": "deepspeed"}}},
            "learner.kind: deepspeed` needs `placement.kind: ray`",
        ),
        ("models", {"tiny": {"placement": {"mps": True}}}, "placement: `mps` needs `kind: ray` and `colocated: true`"),
        (
            "models",
            {"tiny": {"placement": {"kind": "ray", "colocated": False, "mps": True}}},
            "placement: `mps` needs `kind: ray` and `colocated: true`",
        ),
        ("models", {"tiny": {"embedded": {"hidden_size": 64, "heads": 3}}}, "hidden_size` .64. has to be `heads` .3."),
        ("models", {"tiny": {"embedded": {"hidden_size": 12, "heads": 4}}}, "times an even number"),
        ("models", {"tiny": {"embedded": {"heads": 4, "key_value_heads": 3}}}, "a multiple of `key_value_heads` .3."),
        (
            "environments",
            {"alfworld": {"agent": {"template": "alfword-v1"}}},
            "no template 'alfword-v1'; there are .*, alf",
        ),
        (
            "environments",
            {"webshop": {"train_split": "tain"}},
            "webshop.train_split: there is no panel 'tain'; there are",
        ),
        (
            "environments",
            {"alfworld": {"evaluation_splits": {"in_domain": "seen"}}},
            "alfworld.evaluation_splits.in_domain: there is no panel 'seen'; there are train, valid_seen",
        ),
        ("warm_start", {"epochs": float("inf")}, "warm_start.epochs: inf is not allowed"),
        ("training", {1: 2}, "training.1: .* should be strings"),
        (
            "training",
            {"learning_rate": 1e300},
            "training.learning_rate: 1e.300 is not allowed: .*less than or equal to 1",
        ),
        ("training", {"learning_rate": 1e-300}, "training.learning_rate: 1e-300 is not allowed"),
        ("training", {"clip": 1e300}, "training.clip: 1e.300 is not allowed"),
        ("training", {"clip_high": 1e-300}, "training.clip_high: 1e-300 is not allowed"),
        ("training", {"temperature": 1e-300}, "training.temperature: 1e-300 is not allowed"),
        ("training", {"environment_workers": 10**6}, "training.environment_workers: 1000000 is not allowed"),
        ("training", {"tasks_per_iteration": 10**9}, "training.tasks_per_iteration: 1000000000 is not allowed"),
    ],
)
def test_values_that_cannot_work_are_refused_before_any_job(section, values, said):
    body = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    body[section] = values
    with pytest.raises(ConfigError, match=said):
        parse_config(body)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_panels_that_a_configuration_may_name_are_those_there_are(name):
    assert PANELS[name] == (*environment_package(name).SPLITS, *MERGED.get(name, {}))


def test_an_embedded_model_without_chat_template_is_refused_before_any_job(
    workspace: Path, snakemake: Snakemake, capsys
):
    body = yaml.safe_load((workspace / "config/miniature.yaml").read_text())
    body["environments"]["alfworld"]["agent"]["chat"] = True
    path = workspace / "config/wrong.yaml"
    path.write_text(yaml.safe_dump(body))
    said = "the embedded model 'tiny' has no chat template\n  mend: set environments.alfworld.agent.chat: false"
    with pytest.raises(SystemExit) as left:
        main(["config", "check", str(path)])
    assert left.value.code == 2 and said in capsys.readouterr().err
    result = snakemake("-n", "--configfile", "config/wrong.yaml")
    assert result.returncode != 0 and "agent.chat: false" in result.stdout + result.stderr


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("name: one\nmodels: {tiny: {}}\nmatrix: {models: [tiny]}\ntraining:\n  epochs: 1\n  epochs: 2\n")
    with pytest.raises(ConfigError, match="twice.yaml is not YAML: the key 'epochs' is there twice"):
        load_config(path)


def test_anchors_and_merges_are_no_repetitions(tmp_path):
    path = tmp_path / "merged.yaml"
    base = "name: one\nmodels: {tiny: {}}\nmatrix: {models: [tiny]}\nenvironments:\n  alfworld:\n"
    path.write_text(base + "    training: &a {<<: {iterations: 7}, iterations: 3}\ntraining: {<<: *a, epochs: 2}\n")
    found = load_config(path)
    assert (found.training.iterations, found.training.epochs) == (3, 2)
    path.write_text(base + "    training: {<<: {iterations: 7, iterations: 8}}\n")
    with pytest.raises(ConfigError, match="the key 'iterations' is there twice"):
        load_config(path)


def test_a_key_that_is_there_twice_stops_the_workflow(workspace: Path, snakemake: Snakemake) -> None:
    path = workspace / "config/twice.yaml"
    path.write_text((workspace / "config/miniature.yaml").read_text() + "\nname: other\n")
    result = snakemake("-n", "--configfile", "config/twice.yaml")
    assert result.returncode != 0
    assert "config/twice.yaml is not YAML: the key 'name' is there twice" in result.stdout + result.stderr


def test_a_path_that_cannot_be_used_is_one_message(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as left:
        main(["config", "check", str(tmp_path / "file" / "config.yaml")])
    assert left.value.code == 1
    assert "config.yaml cannot be used: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["verify", "--config"], ["doctor", "--use", "base", "--config"], ["config", "check"]]
)
def test_a_folder_in_place_of_a_configuration_is_answered_with_the_file(command, tmp_path, capsys):
    def said() -> str:
        with pytest.raises(SystemExit):
            main([*command, str(tmp_path)])
        return capsys.readouterr().err

    assert f"{tmp_path} cannot be used: Is a directory\n  mend: name a file in this directory" in said()
    (tmp_path / "config.yaml").write_text("")
    assert f"mend: name a file, e.g. {tmp_path}/config.yaml" in said()
