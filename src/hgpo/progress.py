"""Progress of long work: a bar on a terminal; elsewhere, in the log of a job, a line now and then."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

EVERY_S = 30.0  # between two lines of a log
LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed}, {rate_fmt}"


class ErrorStream:
    """The standard error stream. When its reader is gone, what is written is lost, and no work with it."""

    def write(self, text: str) -> None:
        with without_reader():
            sys.stderr.write(text)

    def flush(self) -> None:
        with without_reader():
            sys.stderr.flush()

    def isatty(self) -> bool:
        try:
            return sys.stderr.isatty()
        except ValueError:  # it was closed
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


ERROR_STREAM: Any = ErrorStream()


@contextmanager
def without_reader() -> Iterator[None]:
    """Goes on when the standard error stream cannot be written; without a reader nothing is written from then on."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EIO):
            with suppress(OSError, ValueError):  # else Python itself fails when it flushes the stream at its end
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stderr.fileno())
                os.close(nowhere)


class _Lines(tqdm):
    disable: bool

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        print(msg or str(self), file=ERROR_STREAM, flush=True)
        return True

    def clear(self, *_: Any, **__: Any) -> None:
        """Lines that were printed stay."""

    def close(self) -> None:
        if not self.disable:
            self.disable = True
            self.display()
            self._decr_instances(self)


def progress(work: Iterable[Any] | None = None, *, total: int, desc: str, unit: str, initial: int = 0) -> Any:
    """tqdm's bar over `work`, or one to `update` by hand."""
    options: dict[str, Any] = {"total": total, "initial": initial, "desc": desc, "unit": unit}
    options["file"] = ERROR_STREAM
    if ERROR_STREAM.isatty():
        return tqdm(work, **options)
    return _Lines(work, **options, mininterval=EVERY_S, maxinterval=2 * EVERY_S, miniters=1, bar_format=LINE)
