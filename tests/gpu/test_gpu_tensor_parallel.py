"""vLLM on two real GPUs, without Ray, says what the transformers engine says."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu import EMBEDDED, ON_CPU, Job, cards, needs_gpus

pytestmark = needs_gpus
SCRIPT = Path(__file__).parents[1] / "rollout" / "two_workers.py"


def test_an_engine_on_two_gpus_completes_and_takes_weights_as_one_does(tmp_path):
    from hgpo.config.experiment import EmbeddedModel
    from hgpo.rollout.policy import save_policy
    from hgpo.training.embedded import build_model, train_tokenizer

    visible = cards(2)
    tokenizer = train_tokenizer(["goal: open the door at place 2\n", "<action>go right</action>"] * 8, 320)
    settings = EmbeddedModel(**(EMBEDDED | {"vocabulary": 320, "context": 512}))
    save_policy(build_model(settings, tokenizer, 0).eval(), tokenizer, tmp_path / "start")
    job = Job([sys.executable, str(SCRIPT), str(tmp_path / "start")], tmp_path / "log", visible)
    job.succeeds()
    assert float(job.said().split("difference")[-1]) < (1e-3 if ON_CPU else 0.1)
    job.close()
