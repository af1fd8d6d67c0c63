"""What the acceptance runs on GPUs share: the machine's cards, `hgpo` in processes of its own, parts of a model.

Each command of `hgpo` is a process of its own, so that it gives its GPU memory back, and takes little of it, so that
several workers of pytest-xdist share the cards. `HGPO_GPU_TESTS_ON_CPU=1` runs the same cases on CPU processes
(float32, no CUDA graphs, gloo instead of NCCL) and skips those that need a GPU by their nature.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

ON_CPU = os.environ.get("HGPO_GPU_TESTS_ON_CPU") == "1"
TIMEOUT_S = 600.0 if ON_CPU else 240.0
GAP = 0.05  # nats a token between engine and learner, both in bfloat16
EMBEDDED = {"hidden_size": 128, "layers": 2, "heads": 2, "key_value_heads": 1, "intermediate_size": 128}
EMBEDDED |= {"vocabulary": 600}
WARM_START = {"demonstrations": 8, "epochs": 50}  # some of its actions are valid then, so that advantages differ
AGENT = {"max_response_tokens": 16}  # there has to be room for the completions that a weight update is checked by
T = TypeVar("T")


def _obstacle() -> str:
    """Why no case can run here; empty if some can."""
    missing = [name for name in ("torch", "vllm", "ray", "deepspeed") if importlib.util.find_spec(name) is None]
    if missing:
        return f"the acceptance runs on GPUs need packages that are not installed here: {', '.join(missing)}"
    import torch

    return "" if ON_CPU or torch.cuda.device_count() else "the acceptance runs need a GPU: torch sees no CUDA device"


needs_gpus = pytest.mark.skipif(bool(_obstacle()), reason=_obstacle())


def cards(count: int) -> str:
    """So many of the visible GPUs, as CUDA_VISIBLE_DEVICES names them; each worker begins at another one.

    Skips the test if there are fewer.
    """
    import torch

    if ON_CPU:
        return ""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    if len(there) < count:
        pytest.skip(f"needs {count} GPUs, {len(there)} visible")
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return ",".join(there[(first + number) % len(there)] for number in range(count))


def model(gpus: int, **changes: Any) -> dict[str, Any]:
    """The section of the tiny model, in bfloat16 on so many GPUs; the whole of it on CPU processes."""
    settings = {"embedded": EMBEDDED, "dtype": "bfloat16", "gpus": gpus} | changes
    return settings | ({"dtype": "float32", "gpus": 0} if ON_CPU else {})


def vllm(**changes: Any) -> dict[str, Any]:
    """A vLLM engine that starts fast and takes little. It keeps its memory while the learner works: vLLM takes it for
    an error if what it frees is less than what other processes on its GPU take in that moment."""
    return {"kind": "vllm", "eager": True, "sleep": False, "gpu_memory": 0.05, "cache_gb": 1} | changes


def sleeping(**changes: Any) -> dict[str, Any]:
    """A vLLM engine that gives its memory back while the learner works, more than others take at once."""
    return vllm(**({"sleep": True, "cache_gb": 1 if ON_CPU else 4} | changes))


def deepspeed(stage: int, **changes: Any) -> dict[str, Any]:
    return {"kind": "deepspeed", "zero_stage": stage} | changes


def ray(ranks: int = 2, colocated: bool = True, **further: bool) -> dict[str, Any]:
    return {"kind": "ray", "learner_ranks": ranks, "colocated": colocated} | further


class Job:
    """A Python command under way. log: the file of its output. visible: for CUDA_VISIBLE_DEVICES.

    Fails the test with the output's last lines if it takes longer than `TIMEOUT_S`.
    """

    def __init__(self, command: list[str], log: Path, visible: str, **variables: str) -> None:
        own = {"CUDA_VISIBLE_DEVICES": visible, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        own |= {"RAY_memory_monitor_refresh_ms": "0"}  # a machine whose memory grows with its use is no full one
        own |= {"RAY_prestart_worker_first_driver": "0"}  # one idle process for each core of the machine
        own |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | own | variables
        self.log, self._deadline = log, time.monotonic() + TIMEOUT_S
        with open(log, "a") as output:
            self._begin = output.tell()
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def said(self) -> str:
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def code(self) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.fail(f"did not end within {TIMEOUT_S:.0f} s")

    def succeeds(self) -> None:
        if code := self.code():
            self.fail(f"ended with exit code {code}")

    def until(self, what: str, reached: Callable[[], T]) -> T:
        """What `reached` gives, as soon as that is something."""
        while not (found := reached()):
            if self.process.poll() is not None or time.monotonic() > self._deadline:
                self.fail(f"ended, or went on for {TIMEOUT_S:.0f} s, before there was {what}")
            time.sleep(0.01)
        return found

    def fail(self, what: str) -> Any:
        self.close()
        last = "\n".join(self.said().splitlines()[-40:])
        pytest.fail(f"{' '.join(map(str, self.process.args))}\n{what}; its last lines:\n{last}", pytrace=False)

    def close(self) -> None:
        """Ends what is left of it, with its children."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def hgpo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hgpo", *arguments]
