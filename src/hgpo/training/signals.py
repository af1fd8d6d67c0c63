"""Stopping a run in good order: a signal sets a flag, the loop saves its state and leaves with exit code 75."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class StopSignal:
    """Inside the `with` block the first SIGTERM, SIGUSR1, SIGINT or SIGHUP is noted; a second one acts as usual.

    SIGHUP does not: a terminal that closes and its shell both send one. With `nohup` it stays ignored.
    """

    def __init__(self) -> None:
        self.received: str = ""

    def __call__(self) -> bool:
        return bool(self.received)

    def __enter__(self) -> StopSignal:
        nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        noted = [number for number in SIGNALS if not (nohup and number == signal.SIGHUP)]
        self._before = {number: signal.signal(number, self._note) for number in noted}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if number != signal.SIGHUP:
            signal.signal(number, self._before[signal.Signals(number)])
