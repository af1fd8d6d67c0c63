"""An engine at work in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hgpo.errors import HgpoError
from hgpo.rollout.engines import Completion, Engine, Request, check_request
from hgpo.rollout.weight_transfer import Meeting

LONGEST_POLL_S = 0.02
LONGEST_END_S = 10.0


class EngineThread:
    """An engine that decodes as long as anything is open, whoever asks for it or not: the caller meanwhile renders
    prompts and hands actions to environments.

    make: makes the engine, in the one thread that ever touches it. context: longest prompt and response together.
    timeout_s: the longest that a call may take; after one that took longer every call fails at once.
    What the engine raises in its own time is raised by every `poll` until `clear`. Calls are carried out before
    requests that have not been taken in yet. `busy_s` is time spent in the engine's `poll`; where other threads compute
    in Python, it contains waiting for them.
    """

    static = False

    def __init__(self, make: Callable[[], Engine], context: int, timeout_s: float | None = None) -> None:
        self._context = context
        self._timeout_s: float | None = None  # starting takes as long as it takes
        self._changed = threading.Condition()  # guards all that follows
        self._tasks: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._requests: list[Request] = []
        self._completions: list[Completion] = []
        self._open, self._busy_s = 0, 0.0
        self._ends = self._hangs = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
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
        check_request(request, self._context)
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
            self._requests = []
        self.call(clear)
        with self._changed:
            self._completions, self._error = [], None

    def close(self) -> None:
        """Closes the engine and ends its thread."""
        try:
            self.call(self.inner.close)
        finally:
            self._end()

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, done by the engine's thread. Raises HgpoError if it takes longer than `timeout_s`."""
        if self._ends:
            raise RuntimeError("the engine is closed")
        if self._hangs:
            raise self._unanswered()
        future: Future[Any] = Future()
        with self._changed:
            self._tasks.append((work, future))
            self._changed.notify_all()
        try:
            return future.result(self._timeout_s)
        except TimeoutError:
            if future.done():  # at the last moment, or the work's own
                return future.result()
            self._hangs = True
            raise self._unanswered() from None

    def _unanswered(self) -> HgpoError:
        return HgpoError(
            f"the engine has not answered for {self._timeout_s:g} s",
            "see its log; raise engine.timeout_s if it is only slow",
        )

    def _end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        if not self._hangs:
            self._thread.join(LONGEST_END_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._requests or self._open or self._ends)
                if self._ends:
                    return
                tasks, self._tasks = self._tasks, []
                requests, self._requests = self._requests, []
            while tasks:
                self._carry_out(*tasks.pop(0))
            try:
                self._decode(requests)
            except Exception as error:  # told to whoever asks next
                with self._changed:
                    self._error, self._open = error, 0
                    self._changed.notify_all()

    @staticmethod
    def _carry_out(work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

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
