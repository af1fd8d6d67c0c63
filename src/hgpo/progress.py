"""Progress of long work: a bar on a terminal; elsewhere, in the log of a job, a line now and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from hgpo.stderr import ERROR_STREAM

EVERY_S = 30.0  # between two lines of a log
LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed}, {rate_fmt}"


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
