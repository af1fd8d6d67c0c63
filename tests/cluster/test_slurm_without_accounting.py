"""The profile `slurm-nocct` on a Slurm that keeps no accounts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import ROOT, Pipeline, finished
from .test_slurm import ITERATIONS, STAGED, full, on_slurm

ACCOUNTING = False
pytestmark = [pytest.mark.usefixtures("cluster"), full]


def test_the_profile_without_accounting_runs(project: Path, pipeline: Callable[..., Pipeline]) -> None:
    run = pipeline(project, *on_slurm(profile="slurm-nocct", more=STAGED))
    assert run.wait() == 0, run.text()
    assert finished(project, "grpo")["iterations"] == ITERATIONS


def test_doctor_names_the_profile_without_accounting() -> None:
    command = [sys.executable, "-m", "hgpo", "doctor", "--use", "slurm"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "slurm-nocct" in result.stdout, result.stdout
