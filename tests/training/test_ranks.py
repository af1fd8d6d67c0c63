"""Two processes, plain or with the real DeepSpeed, learn what one plain learner learns.

Where torch sees two GPUs, each rank has one of them; else all are CPU processes."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from hgpo.rollout.policy import load_policy, named_weights, save_policy

PLAIN = -1  # in the place of a ZeRO stage: every rank holds everything
GPUS = torch.cuda.device_count()
CARDS = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(GPUS)))).split(",") if GPUS > 1 else ["", ""]
RANKS, ACCUMULATION = (Path(__file__).parent / name for name in ("ranks.py", "accumulation.py"))
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)


def learn(
    folder: Path, stage: int, dtype: str = "float32", ranks: int = 2, offload: bool = False
) -> dict[str, list[dict[str, float]]]:
    run_ranks(RANKS, ranks, str(stage), dtype, str(folder), str(int(offload)))
    return json.loads((folder / f"result-{stage}-{dtype}-{ranks}-{int(offload)}.json").read_text())


def run_ranks(script: Path, ranks: int, *arguments: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as opened:
        # files, not pipes: a pipe that is not read fills up and blocks its rank
        logs = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(ranks), str(port), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": CARDS[rank]},
            )
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [process.wait(timeout=300) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for log in logs:
            log.seek(0)
        assert not any(codes), "\n".join(log.read()[-3000:] for log in logs)


def again(line: dict[str, float], precision: float = 1e-4) -> Any:
    """What is to be equal to a line: the same to the last bit, but on GPUs, whose sums come in any order."""
    return line if GPUS < 2 else pytest.approx(line, rel=precision, abs=precision)


@pytest.fixture(scope="module")
def folder(policy, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    save_policy(*policy, folder / "start")
    return folder


@pytest.fixture(scope="module")
def plain(folder) -> dict[str, list[dict[str, float]]]:
    return learn(folder, PLAIN, ranks=1)


WAYS = [(stage, False) for stage in range(4)] + [(2, True), (3, True)]


@pytest.mark.parametrize(
    ("stage", "offload"), [(PLAIN, False), *(pytest.param(*way, marks=needs_deepspeed) for way in WAYS)]
)
def test_two_ranks_learn_what_one_plain_learner_and_critic_learn(folder, plain, stage, offload):
    lines = learn(folder, stage, offload=offload)
    for part, precision in (("learner", 2e-3), ("critic", 1e-2)):
        for ours, theirs in zip(lines[part], plain[part], strict=True):
            for line in (ours, theirs):
                line.pop("padding_share", None)  # several ranks cut micro-batches of their own
            assert ours == pytest.approx(theirs, rel=precision, abs=2e-5)
        assert lines[part][2] == again(lines[part][3]), f"a {part} brought back from its state goes on equal"
    if stage != PLAIN:
        assert f"saved by 2 learner ranks with ZeRO stage {stage}" in lines["refused"], "another stage cannot go on"
    losses = [line["loss/value"] for line in lines["critic"]]
    assert losses[2] < losses[0] / 2
    one, _ = load_policy(folder / f"policy-{stage}-float32-2-{int(offload)}")
    other, _ = load_policy(folder / f"policy-{PLAIN}-float32-1-0")
    start, _ = load_policy(folder / "start")
    differences = [
        (a - b).abs().mean() for (_, a), (_, b) in zip(named_weights(one), named_weights(other), strict=True)
    ]
    moved = [(a - b).abs().mean() for (_, a), (_, b) in zip(named_weights(one), named_weights(start), strict=True)]
    assert max(differences) < 0.02 * max(moved)


@pytest.mark.parametrize("stage", [PLAIN, *(pytest.param(stage, marks=needs_deepspeed) for stage in range(1, 4))])
def test_bfloat16_learns_nearly_the_same(folder, plain, stage):
    lines = learn(folder, stage, "bfloat16")
    for ours, theirs in zip(lines["learner"], plain["learner"], strict=True):
        assert ours["loss/policy"] == pytest.approx(theirs["loss/policy"], abs=0.05)
    for ours, theirs in zip(lines["critic"], plain["critic"], strict=True):
        assert ours["loss/value"] == pytest.approx(theirs["loss/value"], rel=0.2, abs=0.05)
    for part in ("learner", "critic"):
        assert lines[part][2] == again(lines[part][3], 0.02)


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_small_gradients_of_bfloat16_weights_add_up(tmp_path, stage):
    run_ranks(ACCUMULATION, 2, str(stage), str(tmp_path / "norm"))
    assert float((tmp_path / "norm").read_text()) == pytest.approx(1 + 255 / 512, rel=0.01)  # 1.0 in bfloat16
