"""Whole runs with the real vLLM, alone and together with real Ray and real DeepSpeed, on a CPU."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from hgpo.errors import HgpoError, Interrupted
from hgpo.rollout import vllm_engine


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed here: {', '.join(missing)}")


@needs("vllm")
def test_a_run_with_vllm_in_this_process(experiment, monkeypatch):
    from test_resume import StopAfter

    model = {"engine": {"kind": "vllm"}}
    with pytest.raises(Interrupted):
        experiment.train(model=model, iterations=3, stopped=StopAfter(150))
    experiment.train(model=model, iterations=3)
    lines = experiment.metrics()
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert all(line["sync_gap"] < 1e-3 and line["log_prob_gap"] < 1e-3 for line in lines)
    assert all(line["engine/stale"] == 0 for line in lines)

    monkeypatch.setattr(vllm_engine.VllmEngine, "_load", lambda engine, model: None)
    with pytest.raises(HgpoError, match="engine and learner differ by .* in mean"):
        experiment.train(model={"engine": {"kind": "vllm", "gap_alarm": 1e-3}}, iterations=4, allow=True)


@needs("vllm", "ray", "deepspeed")
def test_a_run_with_vllm_ray_and_two_deepspeed_ranks(experiment, unbroken):
    model = {
        "engine": {"kind": "vllm"},
        "learner": {"kind": "deepspeed", "zero_stage": 2},
        "placement": {"kind": "ray", "learner_ranks": 2, "colocated": False},
    }
    experiment.train(model=model, iterations=2)
    experiment.train(model=model, iterations=3, allow=True)
    lines, expected = experiment.metrics(), unbroken.metrics()
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert all(line["sync_gap"] < 1e-3 for line in lines)
    assert lines[0]["advantage/mean"] == pytest.approx(expected[0]["advantage/mean"])
    assert np.isfinite([line["loss/policy"] for line in lines]).all()


@needs("ray", "deepspeed")
def test_ppo_with_its_critic_on_two_deepspeed_ranks(experiment, prepared, tmp_path):
    critic = {"learning_rate": 1e-2, "epochs": 2}
    (tmp_path / "alone").mkdir()
    alone = prepared.other(tmp_path / "alone")
    alone.train("ppo", iterations=2, critic=critic)
    model = {
        "learner": {"kind": "deepspeed", "zero_stage": 3},
        "placement": {"kind": "ray", "learner_ranks": 2, "colocated": False},
    }
    experiment.train("ppo", model=model, iterations=1, critic=critic)
    experiment.train("ppo", model=model, iterations=2, critic=critic, allow=True)
    lines, expected = experiment.metrics("ppo"), alone.metrics("ppo")
    assert [line["iteration"] for line in lines] == [0, 1]
    assert lines[0]["loss/value"] == pytest.approx(expected[0]["loss/value"], rel=1e-2)
    assert lines[1]["value/mean"] != 0.0 and np.isfinite(lines[1]["loss/value"])
    assert lines[1]["value/mean"] == pytest.approx(expected[1]["value/mean"], rel=0.2)
