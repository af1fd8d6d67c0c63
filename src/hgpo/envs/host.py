"""The environments of one process, what is asked of them and what they answer."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hgpo.envs.base import Environment, Observation
from hgpo.errors import DataError, HgpoError
from hgpo.tasks import Task


@dataclass(frozen=True)
class Call:
    """One request of an episode.

    With a task: reset an environment to it, take the actions of `replay` and compare what is observed, the reset
    included, with `fingerprints`. Then, if there is an `action`, take it.
    """

    serial: int
    episode: int
    task: Task | None = None
    replay: tuple[str, ...] = ()
    fingerprints: tuple[bytes, ...] = ()
    action: str | None = None


@dataclass(frozen=True)
class Release:
    """The episode is over: its environment may serve another."""

    episode: int


@dataclass(frozen=True)
class Expect:
    """An episode with this task will be begun soon. Calls go before it."""

    task: Task


@dataclass(frozen=True)
class Expected:
    """One more `Expect` is done with, or has become needless."""


@dataclass(frozen=True)
class Answer:
    serial: int
    observation: Observation


@dataclass(frozen=True)
class Failure:
    """A call that raised. permanent: trying again cannot help (missing data, a replay that differs)."""

    serial: int
    reason: str
    permanent: bool


@dataclass(frozen=True)
class Alive:
    """Sent at the start of a worker and after every replayed step: what follows has its own time limit."""


@dataclass(frozen=True)
class Unstartable:
    """The worker cannot be set up, and neither can any other."""

    reason: str


class ReplayDiffers(Exception):
    """A replayed step was observed differently than the first time."""


def fingerprint(observation: Observation) -> bytes:
    """16 bytes that are equal exactly if all fields of two observations are equal."""
    o = observation
    fields = (o.text, o.state, tuple(o.admissible), o.goal, float(o.reward), float(o.score), bool(o.done), bool(o.won))
    return hashlib.blake2b(repr(fields).encode("utf-8", "backslashreplace"), digest_size=16).digest()


class Host:
    """The environments of one process, by episode, and the idle ones that wait for reuse."""

    def __init__(self, make_environment: Callable[[], Environment], alive: Callable[[], None] = lambda: None) -> None:
        self._make_environment = make_environment
        self._alive = alive
        self._running: dict[int, Environment] = {}
        self._idle: list[Environment] = []

    def answer(self, call: Call) -> Answer | Failure:
        """Carries out a call. After a failure the episode's environment is thrown away."""
        try:
            return Answer(call.serial, self._perform(call))
        except (Exception, SystemExit) as error:
            self._discard(call.episode)
            permanent = isinstance(error, DataError | ReplayDiffers)
            return Failure(call.serial, describe(error), permanent)

    def release(self, episode: int) -> None:
        environment = self._running.pop(episode, None)
        if environment is not None:
            self._idle.append(environment)

    def expect(self, task: Task) -> None:
        """Lets an idle environment get ready for a task. What goes wrong is for its `reset` to say; after a failure
        the environment is thrown away."""
        environment = None
        try:
            environment = self._idle.pop() if self._idle else self._make_environment()
            expect = getattr(environment, "expect", None)
            if expect is not None:
                expect(task)
            self._idle.append(environment)
        except (Exception, SystemExit):
            if environment is not None:
                with suppress(Exception):
                    environment.close()

    def close(self) -> None:
        for episode in list(self._running):
            self._discard(episode)
        while self._idle:
            with suppress(Exception):
                self._idle.pop().close()

    def _perform(self, call: Call) -> Observation:
        if call.task is not None:
            self.release(call.episode)
            environment = self._idle.pop() if self._idle else self._make_environment()
            self._running[call.episode] = environment
            observation = environment.reset(call.task)
            self._compare(call, 0, observation)
            for index, action in enumerate(call.replay, start=1):
                self._alive()
                observation = environment.step(action)
                self._compare(call, index, observation)
            if call.action is None:
                return observation
            self._alive()
        assert call.action is not None
        return self._running[call.episode].step(call.action)

    def _compare(self, call: Call, index: int, observation: Observation) -> None:
        if call.fingerprints and fingerprint(observation) != call.fingerprints[index]:
            after = f"step {index}, action {call.replay[index - 1]!r}," if index else "reset"
            raise ReplayDiffers(f"replay differs: {after} gave another observation than the first time")

    def _discard(self, episode: int) -> None:
        environment = self._running.pop(episode, None)
        if environment is not None:
            with suppress(Exception):
                environment.close()


def describe(error: BaseException) -> str:
    if isinstance(error, HgpoError | ReplayDiffers):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
