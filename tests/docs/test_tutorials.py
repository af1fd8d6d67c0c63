"""The tutorials, followed word by word in a copy of the project.

A block with a title is a file to write; a diff is applied; bash and Python blocks are run. A text block without a title
after a bash block is what that must print.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the parts of the project that the tutorials touch."""
    for part in ("src/hgpo", "config", "workflow/schemas"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=NO_CACHES)
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "hgpo").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hgpo "$@"\n')
    (scripts / "hgpo").chmod(0o755)
    return tmp_path


def run(project: Path, *command: str, text: str | None = None) -> str:
    """What a command prints that is run in `project`."""
    path = f"{project / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "PATH": path}
    done = subprocess.run(command, cwd=project, env=environment, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(page: str, project: Path) -> int:
    """Does what the page says, in `project`; returns how many outputs were compared."""
    printed, compared = None, 0
    for kind, title, body in BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        before, printed = printed, None
        if title:
            (project / title).parent.mkdir(parents=True, exist_ok=True)
            (project / title).write_text(body, encoding="utf-8")
        elif kind == "diff":
            run(project, "patch", "-p1", "--batch", text=body)
        elif kind == "bash":
            printed = run(project, "bash", "-euo", "pipefail", "-c", body)
        elif kind == "python":
            run(project, sys.executable, "-c", body)
        elif kind == "text" and before is not None:
            assert before == body, page
            compared += 1
    return compared


@pytest.mark.parametrize(
    ("page", "outputs"),
    [("own-rollouts.md", 2), ("add-an-estimator.md", 2), ("add-an-environment.md", 1), ("first-run.md", 1)],
)
def test_a_tutorial_does_what_it_says(page: str, outputs: int, project: Path) -> None:
    assert follow(page, project) == outputs


@pytest.mark.parametrize(
    ("page", "config", "environment"),
    [("add-an-estimator.md", "median", "alfworld"), ("add-an-environment.md", "corridor", "corridor")],
)
def test_the_configuration_of_a_tutorial_trains(page: str, config: str, environment: str, project: Path) -> None:
    follow(page, project)
    common = ["--config", f"config/{config}.yaml", "--environment", environment]
    assert "runs" in run(project, "hgpo", "config", "check", common[1])
    run(project, "hgpo", "prepare-data", *common)
    for command in ("warm-start", "train --method hgpo --seed 0"):
        run(project, "hgpo", *command.split(), *common, "--model", "tiny", "--history", "2")
    if environment == "corridor":  # tables of an environment that upstream doesn't have
        one = "--method hgpo --model tiny --history 2 --training-seed 0 --split test --seed 123"
        folder = f"results/{config}/runs/tiny/{environment}/hgpo/K2/seed0/final"
        out = f"results/{config}/episodes/tiny/{environment}/hgpo/K2/seed0/test/seed123.parquet"
        run(project, "hgpo", "evaluate", folder, *common, *one.split(), "--out", out)
        assert "leakage.csv" in run(project, "hgpo", "tables", "--config", common[1])
