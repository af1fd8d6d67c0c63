"""The analyses in the repository are what the tools compute from the episodes and rollouts beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with a copy of the study's results."""
    folder = tmp_path_factory.mktemp("study")
    shutil.copytree(ROOT / "results/study", folder / "results/study", ignore=shutil.ignore_patterns("*.steps.parquet"))
    return folder


@pytest.mark.parametrize("tool", ["all_pairs", "context_bias"])
def test_the_committed_analysis_is_what_the_tool_computes(study, tool):
    made = study / "results/study/analysis" / f"{tool}.csv"
    made.unlink()
    call = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "results/study"]
    done = subprocess.run(call, cwd=study, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    committed = pd.read_csv(ROOT / "results/study/analysis" / made.name)
    pd.testing.assert_frame_equal(pd.read_csv(made), committed, rtol=1e-4)
    assert {"alfworld", "webshop"} == set(committed["environment"])
