"""Many environments in a few worker processes, with nothing lost when one dies.

The pool records every episode's task and actions. That record is all it needs: when a worker dies, hangs or is
recycled, the episode's next call is sent together with the record, and a fresh environment is brought to the same
state, checked observation by observation. So results depend neither on the number of workers nor on their fate.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hgpo.envs.base import Environment, Observation
from hgpo.envs.channel import PoolEnd
from hgpo.envs.host import Alive, Answer, Call, Expect, Expected, Host, Release, Unstartable, fingerprint
from hgpo.envs.worker import IGNORED_SIGNALS
from hgpo.errors import ConfigError, EnvironmentFailure
from hgpo.tasks import Task

START_ATTEMPTS = 3


@dataclass(frozen=True)
class EpisodeFailed:
    """An episode that cannot go on. task: which; action: during which action (None: reset); reason: why, in words."""

    task: Task
    action: str | None
    reason: str

    def __str__(self) -> str:
        during = "reset" if self.action is None else f"action {self.action!r}"
        return f"task {self.task.id} failed at {during}: {self.reason}"


@dataclass
class PoolStatistics:
    """Counted since the pool was made. replays: episodes brought back to their state in a fresh environment."""

    calls: int = 0
    replays: int = 0
    failures: int = 0
    lost_workers: int = 0
    recycled_workers: int = 0


@dataclass
class _Episode:
    """The record of an episode. home: the process that holds its environment, if one does."""

    id: int
    task: Task
    actions: list[str] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)
    home: _Process | _InProcess | None = None
    blamed: int = 0
    done: bool = False
    waiting: bool = False
    action: str | None = None


class Pool:
    """Environments of episodes, spread over worker processes.

    make_environment: makes one environment; picklable and defined in an importable module. workers: number of
    processes; 0 runs all in this process, for debugging and without time limits. call_timeout_s: the longest a
    `reset` or `step` may take. max_replays: how often an episode is tried again after its call broke or lost a worker.
    recycle_after: a worker is replaced after so many resets, as soon as none of its episodes is under way, and after
    about twice as many in any case (None: never). group_size: so many consecutive episode numbers share a worker, which
    spares loading the same task in several. start_timeout_s: the longest a worker may take to start.

    Which worker an episode goes to follows from its number alone. For one thread at a time.
    Raises ConfigError for unusable arguments and EnvironmentFailure when workers cannot be started.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        workers: int = 1,
        *,
        call_timeout_s: float = 60.0,
        max_replays: int = 2,
        recycle_after: int | None = 500,
        group_size: int = 1,
        start_timeout_s: float = 120.0,
    ) -> None:
        for name, value, least in [
            ("workers", workers, 0),
            ("max_replays", max_replays, 0),
            ("recycle_after", 1 if recycle_after is None else recycle_after, 1),
            ("group_size", group_size, 1),
        ]:
            if value < least:
                raise ConfigError(f"pool: {name} is {value}", f"give at least {least}")
        self.statistics = PoolStatistics()
        self._max_replays = max_replays
        self._recycle_after = recycle_after
        self._group_size = group_size
        self._episodes: dict[int, _Episode] = {}
        self._results: list[tuple[int, Observation | EpisodeFailed]] = []
        self._serial = 0
        self._slots: list[_Slot] = []
        if workers == 0:
            self._slots.append(_Slot(lambda: _InProcess(make_environment)))
            return
        try:
            factory = pickle.dumps(make_environment)
            if getattr(make_environment, "__module__", None) == "__main__":
                raise pickle.PicklingError("it is defined in the main script")
        except Exception as error:
            raise ConfigError(
                f"pool: make_environment cannot be sent to a worker: {error}",
                "give a function, class or functools.partial from an importable module",
            ) from None
        self._slots.extend(_Slot(lambda: _Process(factory, call_timeout_s, start_timeout_s)) for _ in range(workers))
        try:
            for slot in self._slots:
                slot.start()
        except BaseException:
            self.close()
            raise

    def submit(self, episode: int, request: Task | str) -> None:
        """Hands in an episode's next request: a task begins the episode anew, a string is an action.

        Does not wait. Raises ValueError if the episode still waits for an answer, has ended, or was never begun.
        """
        record = self._episodes.get(episode)
        if record is not None and record.waiting:
            raise ValueError(f"episode {episode} still waits for an answer")
        if isinstance(request, Task):
            self.release(episode)
            record = self._episodes[episode] = _Episode(episode, request)
        elif record is None:
            raise ValueError(f"episode {episode} was not begun with a task, or has failed")
        elif record.done:
            raise ValueError(f"episode {episode} has ended")
        else:
            record.action = request
        record.waiting = True
        self.statistics.calls += 1
        slot = self._slot(episode)
        slot.pending.append(record)
        self._dispatch(slot)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Says that episodes 0, 1, ... will begin with these tasks: workers use their idle time to load them ahead.

        Does not wait and promises nothing; a worker that breaks over it costs no episode one of its tries. Without
        worker processes there is no idle time, and nothing happens.
        """
        for slot, task in dict.fromkeys((self._slot(episode), task) for episode, task in enumerate(tasks)):
            process = slot.start()
            if isinstance(process, _Process):
                process.send(Expect(task))

    def ready(self, timeout: float | None = None) -> list[tuple[int, Observation | EpisodeFailed]]:
        """All answers that have come in, by episode number; waits up to `timeout` seconds for the first.

        Empty if none came in time, or at once if no request is outstanding. timeout: None waits as long as it takes,
        which the time limits of calls bound.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            for slot in self._slots:
                self._collect(slot)
            now = time.monotonic()
            if self._results or not self.outstanding or (limit is not None and now >= limit):
                results, self._results = sorted(self._results, key=lambda result: result[0]), []
                return results
            busy = [slot.process for slot in self._slots if slot.sent and slot.process is not None]
            wake = min(process.deadline() for process in busy)
            _wait(busy, max(0.0, wake - now if limit is None else min(wake, limit) - now))

    def release(self, episode: int) -> None:
        """Ends an episode, under way or not; its environment may serve another. Unknown episodes are no error."""
        record = self._episodes.pop(episode, None)
        if record is None:
            return
        slot = self._slot(episode)
        if record in slot.pending:
            slot.pending.remove(record)
        self._results = [result for result in self._results if result[0] != episode]
        if record.home is not None and record.home is slot.process:
            slot.process.send(Release(episode))

    def close(self) -> None:
        """Ends all workers, those that hang by force."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.hang_up()
        give_up = time.monotonic() + 1.0
        for slot in self._slots:
            if slot.process is not None:
                slot.process.end(max(0.0, give_up - time.monotonic()))
                slot.process = None
            slot.pending.clear()
            slot.sent.clear()
        self._episodes.clear()
        self._results.clear()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def outstanding(self) -> int:
        """Requests handed in whose answer `ready` has not returned yet."""
        return sum(record.waiting for record in self._episodes.values()) + len(self._results)

    @property
    def worker_ids(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [slot.process.pid for slot in self._slots if slot.process is not None and slot.process.pid]

    # -- within --------------------------------------------------------------------------------------------------

    def _slot(self, episode: int) -> _Slot:
        return self._slots[episode // self._group_size % len(self._slots)]

    def _dispatch(self, slot: _Slot) -> None:
        """Sends what is pending, unless the worker is due to be replaced and still has calls to answer."""
        if not slot.pending:
            return
        if self._due(slot):
            if slot.sent:
                return
            slot.stop()
            self.statistics.recycled_workers += 1
        elif not slot.sent and slot.process is not None and slot.process.dead:
            slot.stop()
            self.statistics.lost_workers += 1
        process = slot.start()
        while slot.pending:
            record = slot.pending.popleft()
            call = self._call(record, process)
            record.home = process
            slot.resets += call.task is not None
            slot.sent.append((call, record))
            process.send(call)

    def _due(self, slot: _Slot) -> bool:
        if self._recycle_after is None or slot.process is None or slot.resets < self._recycle_after:
            return False
        if all(record.fingerprints for record in slot.pending):
            return False  # only new episodes wait for a new worker
        under_way = sum(e.home is slot.process and not e.done for e in self._episodes.values() if e.fingerprints)
        return not under_way or slot.resets >= self._recycle_after + max(self._recycle_after, under_way)

    def _call(self, record: _Episode, process: _Process | _InProcess) -> Call:
        self._serial += 1
        if record.home is process and record.fingerprints:
            return Call(self._serial, record.id, action=record.action)
        self.statistics.replays += bool(record.fingerprints)
        prints, actions = tuple(record.fingerprints), tuple(record.actions)
        return Call(self._serial, record.id, record.task, actions, prints, record.action)

    def _collect(self, slot: _Slot) -> None:
        """Takes in a worker's answers; replaces it if it died or ran out of time; sends what is pending."""
        process = slot.process
        if process is None:
            self._dispatch(slot)
            return
        for message in process.receive():
            if isinstance(message, Unstartable):
                slot.stop()
                raise EnvironmentFailure(
                    f"the environment workers cannot be set up: {message.reason}",
                    "make_environment must be importable in a new process",
                )
            if isinstance(message, Alive | Expected):
                slot.failed_starts = 0
                continue
            call, record = slot.sent.popleft()
            assert call.serial == message.serial
            if self._episodes.get(record.id) is not record:
                continue  # released while it waited
            if isinstance(message, Answer):
                self._accept(record, message.observation)
            else:
                record.home = None
                self._blame(slot, record, message.reason, message.permanent)
        process.mark_waiting(bool(slot.sent))
        reason = process.fault()
        if reason:
            self._replace(slot, process, reason)
        self._dispatch(slot)

    def _accept(self, record: _Episode, observation: Observation) -> None:
        if record.action is not None:
            record.actions.append(record.action)
        record.fingerprints.append(fingerprint(observation))
        record.done, record.waiting, record.action = observation.done, False, None
        self._results.append((record.id, observation))

    def _blame(self, slot: _Slot, record: _Episode, reason: str, permanent: bool = False) -> None:
        """The episode's call broke: try it again in a fresh environment, or give the episode up."""
        record.blamed += 1
        if not permanent and record.blamed <= self._max_replays:
            slot.pending.append(record)
            return
        tried = f" (tried {record.blamed} times)" if record.blamed > 1 else ""
        self.statistics.failures += 1
        self._results.append((record.id, EpisodeFailed(record.task, record.action, reason + tried)))
        del self._episodes[record.id]

    def _replace(self, slot: _Slot, process: _Process | _InProcess, reason: str) -> None:
        """A worker is lost: the call it was at is blamed, all others are sent again to its successor. No call is
        blamed if the worker may have been at a task that it was told to expect."""
        self.statistics.lost_workers += 1
        started = process.started
        if not started:
            slot.failed_starts += 1
            if slot.failed_starts >= START_ATTEMPTS:
                slot.stop()
                raise EnvironmentFailure(
                    f"an environment worker could not be started in {START_ATTEMPTS} attempts: it {reason}",
                    "see what it wrote on standard error; check memory and process limits",
                )
        lost = [record for _, record in slot.sent if self._episodes.get(record.id) is record]
        culprit = slot.sent[0][1] if slot.sent and started and not process.expecting else None
        slot.stop()
        slot.pending.extendleft(reversed([record for record in lost if record is not culprit]))
        if culprit is not None and self._episodes.get(culprit.id) is culprit:
            self._blame(slot, culprit, f"its worker {reason}")


class _Slot:
    """A place for one worker: the process that fills it now, calls sent to it, and records still to be sent."""

    def __init__(self, make_process: Callable[[], _Process | _InProcess]) -> None:
        self._make_process = make_process
        self.process: _Process | _InProcess | None = None
        self.pending: deque[_Episode] = deque()
        self.sent: deque[tuple[Call, _Episode]] = deque()
        self.resets = 0
        self.failed_starts = 0

    def start(self) -> _Process | _InProcess:
        if self.process is None:
            self.process = self._make_process()
            self.resets = 0
        return self.process

    def stop(self) -> None:
        """Ends the process at once; episodes that lived there find their home gone at their next call."""
        if self.process is not None:
            self.process.end(0.0)
            self.process = None
        self.sent.clear()


class _Process:
    """A worker process. The clock of a call starts when it is sent or when the worker's last message came in."""

    def __init__(self, factory: bytes, call_timeout_s: float, start_timeout_s: float) -> None:
        ours, theirs = socket.socketpair()
        environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str))
        # The signals are blocked while the worker starts, until it ignores them itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "hgpo.envs.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        except OSError as error:
            ours.close()
            raise EnvironmentFailure(
                f"cannot start an environment worker: {error}", "use fewer workers or raise the process limit"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self.pid = self._popen.pid
        self.started = False
        self.expecting = 0  # tasks that it was told to expect and may still be at
        self._end = PoolEnd(ours)
        self._end.send(factory)
        self._call_timeout_s = call_timeout_s
        self._start_timeout_s = start_timeout_s
        self._clock = time.monotonic()
        self._waiting = False

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def unsent(self) -> bool:
        return self._end.unsent

    def send(self, message: Call | Release | Expect) -> None:
        self.expecting += isinstance(message, Expect)
        if isinstance(message, Call):
            if self.started and not self._waiting:
                self._clock = time.monotonic()
            self._waiting = True
        self._end.send(message)

    def receive(self) -> list[Any]:
        self._end.flush()
        messages = self._end.receive()
        self.expecting -= sum(isinstance(message, Expected) for message in messages)
        if messages:
            self._clock = time.monotonic()
            self.started = True
        return messages

    def mark_waiting(self, waiting: bool) -> None:
        self._waiting = waiting

    @property
    def dead(self) -> bool:
        return self._popen.poll() is not None

    def deadline(self) -> float:
        return self._clock + (self._call_timeout_s if self.started else self._start_timeout_s)

    def fault(self) -> str:
        """Why this worker must be replaced, "" if it need not be."""
        if self._end.closed:
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(1.0)
            code = self._popen.poll()
            return f"was killed by signal {-code}" if code and code < 0 else f"ended with exit code {code}"
        if (self._waiting or not self.started) and time.monotonic() >= self.deadline():
            if not self.started:
                return f"did not start within {self._start_timeout_s:g} s"
            return f"did not answer within {self._call_timeout_s:g} s"
        return ""

    def hang_up(self) -> None:
        self._end.close()

    def end(self, grace_s: float) -> None:
        self._end.close()
        if grace_s > 0:
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_s)
        self._popen.kill()
        with suppress(subprocess.TimeoutExpired):  # a process stuck in the kernel is not waited for
            self._popen.wait(5.0)


class _InProcess:
    """The same within this process: a call is carried out when its answer is asked for."""

    pid = 0
    started = True
    expecting = 0
    dead = False

    def __init__(self, make_environment: Callable[[], Environment]) -> None:
        self._host = Host(make_environment)
        self._calls: deque[Call | Release] = deque()

    def send(self, message: Call | Release) -> None:
        self._calls.append(message)

    def receive(self) -> list[Any]:
        answers: list[Any] = []
        while self._calls and not answers:
            message = self._calls.popleft()
            if isinstance(message, Release):
                self._host.release(message.episode)
            else:
                answers.append(self._host.answer(message))
        return answers

    def mark_waiting(self, waiting: bool) -> None:
        pass

    def deadline(self) -> float:
        return 0.0

    def fault(self) -> str:
        return ""

    def hang_up(self) -> None:
        pass

    def end(self, grace_s: float) -> None:
        self._host.close()


def _wait(processes: Iterable[_Process | _InProcess], seconds: float) -> None:
    """Sleeps until one of the processes can be read from or written to, or the seconds have passed."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            if isinstance(process, _Process):
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.unsent else 0)
                selector.register(process, events)
        if selector.get_map():
            selector.select(seconds)
