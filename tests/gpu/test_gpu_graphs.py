"""vLLM's CUDA graphs compute prompts of any length as the model itself does."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu import GAP, ON_CPU, Job, cards, needs_gpus

pytestmark = needs_gpus


def test_long_prompts_are_read_rightly_beside_responses_under_way(tmp_path):
    script = Path(__file__).parent / "whole_steps.py"
    job = Job([sys.executable, str(script)], tmp_path / "log", cards(1))
    job.succeeds()
    assert float(job.said().split("largest")[-1].split()[0]) < (1e-3 if ON_CPU else GAP)
    job.close()
