"""An engine in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from test_asynchronous import Erratic, jobs
from test_collector import collect

from hgpo.errors import CheckpointError, HgpoError
from hgpo.rollout.engine_thread import EngineThread
from hgpo.rollout.engines import Completion, Request


class Slow:
    """Completes one request a poll; notes the threads that it is called from."""

    static = False

    def __init__(self) -> None:
        self.version, self.waiting, self.threads, self.closed = 0, [], set(), False
        self.made, self.polls, self.slept_s = 0, 0, 0.0
        self.fault: Exception | None = None
        self.held = threading.Event()
        self.held.set()

    def submit(self, request: Request) -> None:
        self.threads.add(threading.get_ident())
        self.waiting.append(request.id)

    def poll(self) -> list[Completion]:
        self.threads.add(threading.get_ident())
        self.polls += 1
        self.held.wait()
        if self.fault:
            raise self.fault
        time.sleep(0.01)
        self.slept_s += 0.01
        self.made += 1
        return [Completion(self.waiting.pop(0), [1], [-1.0], "stop", self.version)]

    def update_weights(self, model, version: int) -> None:
        self.threads.add(threading.get_ident())
        self.version = version

    def sleep(self) -> None:
        self.threads.add(threading.get_ident())

    def clear(self) -> None:
        self.waiting.clear()

    def close(self) -> None:
        self.closed = True


def request(number: int) -> Request:
    return Request(number, [1], number, 1)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    """One that waits at most half a second for a call."""
    engine = EngineThread(Slow, context=8, timeout_s=0.5)
    yield engine
    engine.inner.held.set()
    with suppress(HgpoError, RuntimeError):  # it hung, or the test has closed it
        engine.close()
    engine._thread.join(10)
    assert not engine._thread.is_alive()


def drain(engine: EngineThread, count: int) -> list[int]:
    done: list[int] = []
    end = time.monotonic() + 10
    while len(done) < count and time.monotonic() < end:
        done += [completion.id for completion in engine.poll()]
    return done


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not reached() and time.monotonic() < end:
        time.sleep(0.002)
    assert reached()


def cleared_while_it_works(engine: EngineThread) -> None:
    """One request is being worked on and one has not been taken in when another thread clears it."""
    engine.inner.held.clear()
    engine.submit(request(0))
    until(lambda: engine.inner.polls > 0)
    engine.submit(request(1))
    clearing = threading.Thread(target=engine.clear)
    clearing.start()
    until(lambda: bool(engine._tasks))
    engine.inner.held.set()
    clearing.join(10)
    assert not clearing.is_alive()


def test_it_works_while_nobody_asks(engine):
    for number in range(3):
        engine.submit(request(number))
    until(lambda: engine.inner.made == 3)
    assert drain(engine, 3) == [0, 1, 2]
    assert engine.inner.slept_s <= engine.busy_s < engine.inner.slept_s + 5
    engine.update_weights(None, 7)
    assert engine.version == 7
    assert engine.inner.threads == {engine._thread.ident} != {threading.get_ident()}


def test_an_idle_engine_is_not_asked(engine):
    engine.submit(request(0))
    assert drain(engine, 1) == [0]
    polls = engine.inner.polls
    time.sleep(0.05)
    assert engine.inner.polls == polls


def test_episodes_are_those_of_the_engine_itself(policy):
    expected = collect(policy, Erratic(policy[1], 0), jobs())
    engine = EngineThread(lambda: Erratic(policy[1], 1), 10_000)
    episodes = collect(policy, engine, jobs(), workers=2)
    assert [e.record() for e in episodes] == [e.record() for e in expected]


def test_a_request_beyond_the_context_is_refused_at_once(engine):
    with pytest.raises(CheckpointError, match="do not fit the model's context of 8"):
        engine.submit(Request(0, [1] * 8, 0, 1))


def test_what_it_raises_is_told_until_it_is_cleared(engine):
    engine.inner.fault = HgpoError("no memory", "less of it")
    engine.submit(request(0))
    for _ in range(2):
        with pytest.raises(HgpoError, match="no memory"):
            drain(engine, 1)
    engine.inner.fault = None
    engine.clear()
    assert engine.poll() == []
    engine.submit(request(1))
    assert drain(engine, 1) == [1]


def test_nothing_of_what_was_cleared_comes_back(engine):
    cleared_while_it_works(engine)
    made = engine.inner.made
    assert engine.poll() == [] and engine.poll() == []
    assert engine.inner.made == made and engine.inner.waiting == []
    engine.submit(request(2))
    assert drain(engine, 1) == [2]


def test_an_error_of_what_was_cleared_is_forgotten(engine):
    engine.inner.fault = HgpoError("no memory", "less of it")
    cleared_while_it_works(engine)
    engine.inner.fault = None
    assert engine.poll() == []


def test_closing_ends_engine_and_thread():
    engine = EngineThread(Slow, 8)
    engine.close()
    assert engine.inner.closed and not engine._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        engine.sleep()


def test_an_engine_that_cannot_be_made_leaves_no_thread():
    def fails():
        threads.append(threading.current_thread())
        raise HgpoError("no such model", "name another")

    threads: list[threading.Thread] = []
    with pytest.raises(HgpoError, match="no such model"):
        EngineThread(fails, 8)
    assert not threads[0].is_alive()


def test_one_that_hangs_is_waited_for_once(engine):
    engine.inner.held.clear()
    engine.submit(request(0))
    assert engine.poll() == []
    begin = time.monotonic()
    for method in (engine.clear, engine.close):
        with pytest.raises(HgpoError, match=r"has not answered for 0\.5 s"):
            method()
    assert 0.5 <= time.monotonic() - begin < 0.95
