"""An engine in a thread of its own."""

from __future__ import annotations

import threading
import time

import pytest
from test_asynchronous import Erratic, jobs
from test_collector import collect

from hgpo.errors import HgpoError
from hgpo.rollout.engine_thread import EngineThread
from hgpo.rollout.engines import Completion, Request


class Slow:
    """Completes one request a poll; notes the threads that it is called from."""

    static = False

    def __init__(self) -> None:
        self.version, self.waiting, self.threads, self.made, self.closed = 0, [], set(), 0, False
        self.fault: Exception | None = None
        self.held = threading.Event()
        self.held.set()

    def submit(self, request: Request) -> None:
        self.threads.add(threading.get_ident())
        self.waiting.append(request.id)

    def poll(self) -> list[Completion]:
        self.threads.add(threading.get_ident())
        self.held.wait()
        if self.fault:
            raise self.fault
        time.sleep(0.01)
        self.made += 1
        return [Completion(self.waiting.pop(0), [1], [-1.0], "stop", self.version)]

    def update_weights(self, model, version: int) -> None:
        self.threads.add(threading.get_ident())
        self.version = version

    def clear(self) -> None:
        self.waiting.clear()

    def close(self) -> None:
        self.closed = True


def request(number: int) -> Request:
    return Request(number, [1], number, 1)


def drain(engine, count: int) -> list[int]:
    done: list[int] = []
    end = time.monotonic() + 10
    while len(done) < count and time.monotonic() < end:
        done += [completion.id for completion in engine.poll()]
    return done


def test_it_works_while_nobody_asks():
    engine = EngineThread(Slow)
    for number in range(3):
        engine.submit(request(number))
    end = time.monotonic() + 10
    while engine.inner.made < 3 and time.monotonic() < end:
        time.sleep(0.005)
    assert drain(engine, 3) == [0, 1, 2]
    assert 0.03 <= engine.busy_s < 5
    engine.update_weights(None, 7)
    assert engine.version == 7
    assert len(engine.inner.threads) == 1 and threading.get_ident() not in engine.inner.threads
    engine.close()
    assert engine.inner.closed


def test_episodes_are_those_of_the_engine_itself(policy):
    expected = collect(policy, Erratic(policy[1], 0), jobs())
    engine = EngineThread(lambda: Erratic(policy[1], 1))
    episodes = collect(policy, engine, jobs(), workers=2)
    assert [e.record() for e in episodes] == [e.record() for e in expected]


def test_what_it_raises_is_told_until_it_is_cleared():
    engine = EngineThread(Slow)
    engine.inner.fault = HgpoError("no memory", "less of it")
    engine.submit(request(0))
    with pytest.raises(HgpoError, match="no memory"):
        drain(engine, 1)
    with pytest.raises(HgpoError, match="no memory"):
        engine.poll()
    engine.inner.fault = None
    engine.clear()
    assert engine.poll() == []
    engine.submit(request(1))
    assert drain(engine, 1) == [1]


def test_an_engine_that_cannot_be_made_leaves_no_thread():
    def fails():
        raise HgpoError("no such model", "name another")

    before = threading.active_count()
    with pytest.raises(HgpoError, match="no such model"):
        EngineThread(fails)
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_one_that_hangs_is_not_waited_for_for_ever():
    engine = EngineThread(Slow, timeout_s=0.2)
    engine.inner.held.clear()
    engine.submit(request(0))
    assert engine.poll() == []
    with pytest.raises(HgpoError, match=r"has not answered for 0 s.*\n?.*"):
        engine.clear()
    engine.inner.held.set()
