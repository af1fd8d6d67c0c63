"""`train.log` of a run: where and when it was started, each iteration, and how it ended, over all its starts."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from hgpo.stderr import ERROR_STREAM


class Journal:
    """Appends lines to a file, each with date and time. Without a terminal, where no progress bar is drawn, they go to
    the standard error stream, too."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, text: str) -> None:
        line = self.note(text)
        if not ERROR_STREAM.isatty():
            print(line, file=ERROR_STREAM, flush=True)

    def note(self, text: str) -> str:
        """Appends a line to the file only, and returns it."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")
        return line


def this_process() -> str:
    """Process, host and, if there is one, Slurm job."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"process {os.getpid()} on {socket.gethostname()}" + (f", Slurm job {job}" if job else "")


def in_words(line: dict[str, Any], iterations: int) -> str:
    """A line of metrics.jsonl, in short."""
    phases = {key[5:]: value for key, value in line.items() if key.startswith("time/") and key != "time/total"}
    longest = sorted(phases, key=phases.__getitem__, reverse=True)[:2]
    spent = ", ".join(f"{phase} {phases[phase]:.1f} s" for phase in longest)
    validated = f", validation {line['validation/success']:.3f}" if "validation/success" in line else ""
    return (
        f"iteration {line['iteration'] + 1} of {iterations}: success {line['success']:.3f}{validated}, "
        f"{line['steps']:.1f} steps, {line['time/total']:.1f} s ({spent})"
    )
