"""A finished experiment in a fresh clone: everything comes out again and nothing is trained."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import ROOT

pytest.importorskip("dvc", reason="DVC is not installed: pip install -e '.[dvc]'")
pytestmark = pytest.mark.slow

COMMIT = ["-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "--quiet", "--message", "x"]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)


def done(folder: Path, *command: str) -> str:
    result = run(folder, *command)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def hgpo(folder: Path, *arguments: str) -> str:
    return done(folder, sys.executable, "-m", "hgpo", *arguments)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with the workflow, in which the miniature experiment ran to its pins; its remote beside it."""
    home = tmp_path_factory.mktemp("published")
    project = home / "project"
    project.mkdir()
    shutil.copy(ROOT / "Snakefile", project)
    for name in ("workflow", "config"):
        shutil.copytree(ROOT / name, project / name)
    (project / "profiles").symlink_to("workflow/profiles")
    (project / ".gitignore").write_text("/results/\n/data/\n/.snakemake/\n.dvc-hgpo.lock\n")
    body = yaml.safe_load((ROOT / "config/miniature.yaml").read_text()) | {"name": "toy"}
    body["matrix"] |= {"methods": ["hgpo"], "baselines": ["random"]}
    body["dvc"] = {"enabled": True, "remote": str(home / "remote")}
    (project / "toy.yaml").write_text(yaml.safe_dump(body))
    done(project, "git", "init", "--quiet")
    done(project, sys.executable, "-m", "snakemake", "--configfile", "toy.yaml", "--cores", "2")
    done(project, "git", "add", "--all")
    done(project, "git", *COMMIT)
    return home


@pytest.fixture
def clone(published: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    done(tmp_path, "git", "clone", "--quiet", str(published / "project"), str(folder))
    return folder


def test_tables_come_out_again_from_the_pinned_episodes(clone: Path) -> None:
    found = re.search(r"(\d+) of (\d+) tables are as pinned", hgpo(clone, "reproduce", "toy"))
    assert found and found[1] == found[2] and int(found[1]) > 3


def test_what_was_fetched_verifies(clone: Path) -> None:
    hgpo(clone, "pin", "pull", "toy")
    assert "every table is what the episodes give" in hgpo(clone, "verify", "--config", "results/toy/config.yaml")


def test_checkpoints_are_evaluated_again_and_nothing_is_trained(clone: Path) -> None:
    found = re.search(r"(\d+) of (\d+) tables are as pinned", hgpo(clone, "reproduce", "toy", "--evaluate"))
    assert found and found[1] == found[2] and int(found[1]) > 3
    logs = clone / "results/toy-again/logs"
    assert (logs / "evaluate").is_dir()
    assert not (logs / "train").exists() and not (logs / "warm_start").exists()


def test_the_dates_of_fetched_files_schedule_no_training(clone: Path) -> None:
    done(clone, sys.executable, "-m", "dvc", "pull", "--quiet")
    pulled = [path for path in (clone / "pins").rglob("*") if path.is_file()]
    for path in random.Random(1).sample(pulled, len(pulled)):
        os.utime(path)
    hgpo(clone, "pin", "pull", "toy")
    planned = done(clone, sys.executable, "-m", "snakemake", "-n", "--configfile", "toy.yaml", "--until", "tables")
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", planned, flags=re.MULTILINE))
    assert not {"prepare_data", "check_environment", "warm_start", "train", "evaluate"} & set(jobs), planned


def test_an_object_that_the_remote_lacks_is_named_with_the_mend(published: Path, clone: Path, tmp_path: Path) -> None:
    shutil.copytree(published / "remote", tmp_path / "remote")
    settings = clone / ".dvc/config"
    settings.write_text(settings.read_text().replace(str(published / "remote"), str(tmp_path / "remote")))
    weights = max((path for path in (tmp_path / "remote").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    weights.unlink()
    result = run(clone, sys.executable, "-m", "hgpo", "reproduce", "toy")
    text = result.stdout + result.stderr
    assert result.returncode != 0 and "Traceback" not in text
    assert weights.parent.name + weights.name in text or "pins/toy/" in text
    assert "dvc push" in text
