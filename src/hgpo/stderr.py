"""The standard error stream, whose reader may go away before the work is done."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


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
