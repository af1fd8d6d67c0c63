"""Out of memory: one message with what to set, whatever the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from hgpo.errors import HgpoError

ALLOCATION_FAILURES = ("can't allocate memory", "not enough memory")  # of torch on a CPU


@contextmanager
def out_of_memory(where: str, hint: Callable[[], str]) -> Iterator[None]:
    """Raises HgpoError `out of memory in <where>` with this hint for out-of-memory errors of any device."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_allocation_failure(error):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise HgpoError(f"out of memory in {where}: {first}", hint()) from None


def is_allocation_failure(error: Exception) -> bool:
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(text in str(error) for text in ALLOCATION_FAILURES)
