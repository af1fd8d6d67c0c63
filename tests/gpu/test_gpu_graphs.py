"""vLLM's CUDA graphs compute prompts of any length as the model itself does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gpu import GAP, ON_CPU, Job, cards, needs_gpus

pytestmark = needs_gpus


@pytest.mark.parametrize("head_size", [128, 64])
def test_prompts_are_read_rightly_beside_responses_under_way(tmp_path, head_size):
    script = Path(__file__).parent / "whole_steps.py"
    job = Job([sys.executable, str(script), str(head_size)], tmp_path / "log", cards(1))
    job.succeeds()
    assert float(job.said().split("largest")[-1].split()[0]) < (1e-3 if ON_CPU else GAP)
    job.close()
