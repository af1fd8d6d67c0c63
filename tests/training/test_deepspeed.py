"""Real DeepSpeed on two CPU processes learns what the plain learner learns."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hgpo.rollout.policy import load_policy, named_weights, save_policy

RANKS = Path(__file__).parent / "ranks.py"
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)


def learn(folder: Path, stage: int, dtype: str = "float32") -> dict[str, list[dict[str, float]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = 1 if stage < 0 else 2
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(rank), str(ranks), str(port), str(stage), dtype, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(o[-3000:] for o in outputs)
    return json.loads((folder / f"result-{stage}-{dtype}.json").read_text())


@pytest.fixture(scope="module")
def folder(policy, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    save_policy(*policy, folder / "start")
    return folder


@pytest.fixture(scope="module")
def plain(folder) -> dict[str, list[dict[str, float]]]:
    return learn(folder, -1)


@needs_deepspeed
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_stage_learns_what_the_plain_learner_and_critic_learn(folder, plain, stage):
    lines = learn(folder, stage)
    for part, precision in (("learner", 2e-3), ("critic", 1e-2)):
        for ours, theirs in zip(lines[part], plain[part], strict=True):
            assert ours == pytest.approx(theirs, rel=precision, abs=2e-5)
        assert lines[part][2] == lines[part][3], f"a {part} brought back from its state goes on equal"
    losses = [line["loss/value"] for line in lines["critic"]]
    assert losses[2] < losses[0] / 2
    one, _ = load_policy(folder / f"policy-{stage}-float32")
    other, _ = load_policy(folder / "policy--1-float32")
    start, _ = load_policy(folder / "start")
    differences = [
        (a - b).abs().mean() for (_, a), (_, b) in zip(named_weights(one), named_weights(other), strict=True)
    ]
    moved = [(a - b).abs().mean() for (_, a), (_, b) in zip(named_weights(one), named_weights(start), strict=True)]
    assert max(differences) < 0.02 * max(moved)


@needs_deepspeed
def test_bfloat16_learns_nearly_the_same(folder, plain):
    lines = learn(folder, 2, "bfloat16")
    for ours, theirs in zip(lines["learner"], plain["learner"], strict=True):
        assert ours["loss/policy"] == pytest.approx(theirs["loss/policy"], abs=0.05)
    for ours, theirs in zip(lines["critic"], plain["critic"], strict=True):
        assert ours["loss/value"] == pytest.approx(theirs["loss/value"], rel=0.2, abs=0.05)
    for part in lines.values():
        assert part[2] == part[3]
