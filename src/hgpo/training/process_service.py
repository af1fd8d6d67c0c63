"""NVIDIA's multi-process service (MPS): processes that share a GPU run on it at the same time instead of by turns.

`python -m hgpo.training.process_service COMMAND...` runs a command on one node with it, until the command ends or is
asked to by SIGTERM or `STOP`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from hgpo.errors import ConfigError

CONTROL = "nvidia-cuda-mps-control"
HINT = "set placement.mps: false (or leave --mps out)"
STOP = signal.SIGUSR2  # `srun` hands it on to its tasks; sent SIGTERM, it has them killed
ENDED_BY_FORCE_S = 20  # when clients of the service have not ended
ENDING_S = 60.0


def control() -> str:
    """The program that starts and ends the service. Raises ConfigError if this machine does not have it."""
    path = shutil.which(CONTROL)
    if path is None:
        raise ConfigError(f"there is no {CONTROL} on this machine", HINT)
    return path


@contextmanager
def process_service() -> Iterator[None]:
    """The service of this machine's GPUs, for every process that is started within; ended with the `with` block.

    It has folders of its own, so that no other run's service is joined or ended.

    Raises ConfigError if the machine does not have it, or it does not start.
    """
    program = control()
    # It numbers what it sees anew, but Ray tells each process a GPU by the number that this process knows it by.
    everything = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        before = {key: os.environ.get(key) for key in own}
        os.environ.update(own)
        try:
            with open(f"{folder}/start.log", "w+") as log:  # a pipe would stay open as long as the service runs
                code = subprocess.run([program, "-d"], env=everything | own, stdout=log, stderr=log).returncode
                log.seek(0)
                if code:
                    raise ConfigError(f"{CONTROL} ended with code {code}: {log.read().strip()}", HINT)
            try:
                yield
            finally:
                with suppress(subprocess.TimeoutExpired):  # what the run made is worth more
                    quit_ = f"quit -t {ENDED_BY_FORCE_S}\n"
                    subprocess.run([program], input=quit_, text=True, capture_output=True, timeout=ENDING_S)
        finally:
            put_back(before)


def put_back(variables: Mapping[str, str | None]) -> None:
    """Sets variables of the environment to what they were; None: not set."""
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def main(command: list[str]) -> int:
    processes: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def stop(number: int, *_: object) -> None:
        asked.append(number)
        for process in processes:
            process.terminate()

    for number in (signal.SIGTERM, STOP):
        signal.signal(number, stop)
    with process_service():
        if not asked:
            processes.append(subprocess.Popen(command))
        if asked:  # while it was started
            stop(asked[0])
        return processes[0].wait() if processes else -asked[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
