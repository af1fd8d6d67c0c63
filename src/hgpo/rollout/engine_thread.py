"""An engine at work in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hgpo.errors import HgpoError
from hgpo.rollout.engines import Completion, Engine, Request
from hgpo.rollout.weight_transfer import Meeting

LONGEST_POLL_S = 0.02


class EngineThread:
    """An engine that decodes as long as anything is open, whoever asks for it or not: the caller meanwhile renders
    prompts and hands actions to environments.

    make: makes the engine, in the one thread that ever touches it. timeout_s: the longest that a call may take.
    What the engine raises in its own time is raised by the next `poll`; `clear` forgets it.
    """

    static = False

    def __init__(self, make: Callable[[], Engine], timeout_s: float | None = None) -> None:
        self._timeout_s: float | None = None  # starting takes as long as it takes
        self._changed = threading.Condition()  # guards all that follows
        self._tasks: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._requests: list[Request] = []
        self._completions: list[Completion] = []
        self._open, self._busy_s, self._ends = 0, 0.0, False
        self._error: Exception | None = None
        threading.Thread(target=self._work, daemon=True).start()
        try:
            self.inner: Any = self.call(make)
        except BaseException:
            self._end()
            raise
        self._timeout_s = timeout_s

    @property
    def version(self) -> int:
        return int(self.inner.version)

    @property
    def busy_s(self) -> float:
        """Seconds in which the engine has worked on completions since it was made."""
        return self._busy_s

    def submit(self, request: Request) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def poll(self) -> list[Completion]:
        """What is completed; waits a moment for the first, perhaps in vain."""
        with self._changed:
            self._changed.wait_for(lambda: self._completions or self._error, LONGEST_POLL_S)
            if self._error:
                raise self._error
            done, self._completions = self._completions, []
            return done

    def update_weights(self, model: Any, version: int) -> None:
        self.call(lambda: self.inner.update_weights(model, version))

    def join(self, meeting: Meeting, first: int) -> None:
        """See `VllmEngine.join`."""
        self.call(lambda: self.inner.join(meeting, first))

    def sleep(self) -> None:
        self.call(self.inner.sleep)

    def clear(self) -> None:
        def clear() -> None:
            self.inner.clear()
            self._open = 0

        with self._changed:
            self._requests, self._completions, self._error = [], [], None
        self.call(clear)
        with self._changed:
            self._completions = []

    def close(self) -> None:
        """Closes the engine and ends its thread."""
        try:
            self.call(self.inner.close)
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, done by the engine's thread."""
        future: Future[Any] = Future()
        with self._changed:
            self._tasks.append((work, future))
            self._changed.notify_all()
        try:
            return future.result(self._timeout_s)
        except TimeoutError:
            if future.done():  # the work's own
                raise
            raise HgpoError(
                f"the engine has not answered for {self._timeout_s:.0f} s",
                "see its log; raise engine.timeout_s if it is only slow",
            ) from None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._requests or self._open or self._ends)
                if self._ends:
                    return
                tasks, self._tasks = self._tasks, []
                requests, self._requests = self._requests, []
            for work, future in tasks:
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            try:
                self._decode(requests)
            except Exception as error:  # told to whoever asks next
                with self._changed:
                    self._error, self._open = error, 0
                    self._changed.notify_all()

    def _decode(self, requests: list[Request]) -> None:
        for request in requests:
            self.inner.submit(request)
            self._open += 1
        if not self._open:
            return
        begin = time.monotonic()
        done = self.inner.poll()
        with self._changed:
            self._busy_s += time.monotonic() - begin
            self._open -= len(done)
            self._completions += done
            if done:
                self._changed.notify_all()
