"""The agent loop: episodes from tasks, a pool of environments and an engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hgpo.agent import Template, encode_prompt, make_memory, parse
from hgpo.agent.prompt import ChatTemplate
from hgpo.config import EnvironmentSettings
from hgpo.envs.base import Observation
from hgpo.envs.pool import EpisodeFailed, Pool
from hgpo.errors import HgpoError
from hgpo.rollout.engines import Completion, Engine, Request
from hgpo.rollout.episode import Episode, Step
from hgpo.streams import derive_seed
from hgpo.tasks import Task

ANSWER_S = 0.003  # time in which most environments answer


@dataclass(frozen=True)
class Job:
    """One episode wanted: rollout number `rollout` of `task`; `advice` follows the goal in every prompt."""

    task: Task
    rollout: int = 0
    advice: str = ""


@dataclass
class _Running:
    """An episode under way."""

    episode: Episode
    memory: Any
    advice: str = ""
    observation: Observation | None = None
    pending: Step | None = None
    keys: tuple[int | str, ...] = field(default_factory=tuple)


@dataclass
class Statistics:
    """Counted during one `collect`.

    engine_s, total_s: seconds in which the engine worked on at least one completion, and from first to last.
    completions, stale: how many there were, and how many of them by weights of another version than the engine's.
    most_running: largest number of episodes under way at once.
    """

    engine_s: float = 0.0
    total_s: float = 0.0
    completions: int = 0
    stale: int = 0
    most_running: int = 0


class Collector:
    """Plays episodes: prompt, completion, action, observation, until done or `max_steps`.

    protocol: the environment's settings; history: K, the steps of history in the prompt.
    seed: of the stream `sampling`; every completion's seed is derived from (seed, keys given to `collect`, task,
    rollout, step), so no episode depends on which others run beside it, in what order, or in how many workers.
    stale, engine_timeout_s: see `hgpo.config.machinery.Engine`.
    remembered: what the agent remembers of a step beside its observation; the action if nothing else is said.

    An episode's next turn is submitted as soon as its environment has answered, and environments work while the
    engine decodes. What waits is bounded: at most `at_once` episodes are under way, each with one request.
    """

    def __init__(
        self,
        protocol: EnvironmentSettings,
        history: int,
        template: Template,
        tokenizer: Any,
        engine: Engine,
        pool: Pool,
        seed: int,
        stale: str = "error",
        engine_timeout_s: float = 600.0,
        remembered: Callable[[Step], str] = lambda step: step.action,
    ) -> None:
        self.protocol, self.history = protocol, history
        self.template, self.tokenizer, self.engine, self.pool, self.seed = template, tokenizer, engine, pool, seed
        self._stale, self._engine_timeout_s = stale, engine_timeout_s
        self._remembered = remembered
        self.statistics = Statistics()
        self._chat: ChatTemplate = "required" if protocol.agent.chat else "never"

    def collect(
        self,
        jobs: Iterable[Job],
        temperature: float,
        keys: tuple[int | str, ...] = (),
        at_once: int = 128,
        stopped: Callable[[], bool] = lambda: False,
        watch: Callable[[Episode, bool], None] = lambda episode, ended: None,
    ) -> Iterator[Episode]:
        """Yields each episode as it ends, at most `at_once` under way; stops early when `stopped()` says so.

        watch: hears of every episode when it has begun, after each of its steps, and, with True, when it has ended.
        Raises HgpoError for a completion that is stale, a log-probability that is not finite, or an engine that does
        not answer.
        """
        statistics = self.statistics = Statistics()
        begin = heard = time.monotonic()
        busy_before = self._busy_s()
        version = self.engine.version
        waiting = list(enumerate(jobs))[::-1]
        running: dict[int, _Running] = {}
        outstanding: set[int] = set()  # episodes whose environment has yet to answer
        deciding: set[int] = set()  # episodes whose completion has yet to come
        unanswered = False
        try:
            while waiting or running:
                if stopped():
                    return
                while waiting and len(running) < at_once:
                    number, job = waiting.pop()
                    running[number] = self._begin(job, keys)
                    self.pool.submit(number, job.task)
                    outstanding.add(number)
                statistics.most_running = max(statistics.most_running, len(running))
                for number, answer in self._answers(outstanding, bool(deciding)):
                    outstanding.discard(number)
                    episode = running[number].episode
                    if self._observe(number, running[number], answer, temperature):
                        self.pool.release(number)
                        del running[number]
                        watch(episode, True)
                        yield episode
                    else:
                        heard = time.monotonic() if not deciding else heard
                        deciding.add(number)
                        watch(episode, False)
                if not deciding:
                    continue
                polled = time.monotonic()
                completions = self.engine.poll()
                now = time.monotonic()
                statistics.engine_s += now - polled
                heard = now if completions else heard
                unanswered = now - heard > self._engine_timeout_s
                if unanswered:
                    raise HgpoError(
                        f"the engine has completed nothing for {now - heard:.0f} s, {len(deciding)} requests wait",
                        "see its log; raise engine.timeout_s if it is only slow",
                    )
                for completion in completions:
                    self._check(running[completion.id].episode, completion, version)
                    deciding.discard(completion.id)
                    action = self._act(running[completion.id], completion)
                    self.pool.submit(completion.id, action)
                    outstanding.add(completion.id)
        finally:
            statistics.total_s = time.monotonic() - begin
            if busy_before is not None:
                statistics.engine_s = max(0.0, (self._busy_s() or 0.0) - busy_before)
            for number in running:
                self.pool.release(number)
            if deciding and not unanswered:
                self.engine.clear()

    def _busy_s(self) -> float | None:
        """What an engine that works beside this process has counted itself; None for one that works in `poll`."""
        return getattr(self.engine, "busy_s", None)

    def _check(self, episode: Episode, completion: Completion, version: int) -> None:
        where = f"{episode.trajectory} step {len(episode.steps)}"
        if not all(map(math.isfinite, completion.log_probs)):
            raise HgpoError(
                f"{where}: the engine returned a log-probability that is not finite",
                "check the checkpoint, or use dtype float32 for the model",
            )
        self.statistics.completions += 1
        if completion.mixed or completion.version != version:
            self.statistics.stale += 1
            if self._stale == "error":
                made = "several weight versions" if completion.mixed else f"weight version {completion.version}"
                raise HgpoError(
                    f"{where}: completed by {made} instead of {version}",
                    "it is a fault of the engine; set engine.stale: count to go on and count such completions",
                )

    def _begin(self, job: Job, keys: tuple[int | str, ...]) -> _Running:
        episode = Episode(task=job.task.id, task_type=job.task.type, rollout=job.rollout, goal=job.task.goal)
        memory = make_memory(self.protocol.agent.memory, self.history)
        return _Running(episode, memory, job.advice, keys=(*keys, job.task.id, job.rollout))

    def _answers(self, outstanding: set[int], engine_busy: bool) -> list[tuple[int, Observation | EpisodeFailed]]:
        """What the environments have answered. A static engine waits for all of them, so that its batches, and
        with them the last bits of its log-probabilities, do not depend on timing. An engine that works beside this
        process is not asked before an environment has had the time to answer: asking may take longer."""
        if not outstanding:
            return []
        if not self.engine.static:
            beside = self._busy_s() is not None
            return self.pool.ready(timeout=(ANSWER_S if beside else 0.0) if engine_busy else None)
        answers: list[tuple[int, Observation | EpisodeFailed]] = []
        while len(answers) < len(outstanding):
            answers.extend(self.pool.ready(timeout=None))
        return sorted(answers, key=lambda answer: answer[0])

    def _observe(self, number: int, running: _Running, answer: Observation | EpisodeFailed, temperature: float) -> bool:
        """Takes an environment's answer in; True if the episode has ended, else the next prompt is submitted."""
        episode = running.episode
        if isinstance(answer, EpisodeFailed):
            episode.failed = answer.reason
            return True
        if running.pending is not None:
            step = running.pending
            step.reward = self.protocol.success_reward * answer.reward
            episode.steps.append(step)
            running.memory.add(step.observation, self._remembered(step))
            running.pending = None
        running.observation = answer
        episode.goal, episode.won, episode.score = answer.goal, answer.won, answer.score
        if answer.done or len(episode.steps) >= self.protocol.max_steps:
            return True
        agent = self.protocol.agent
        prompt = encode_prompt(
            self.tokenizer,
            self.template,
            f"{answer.goal}\n{running.advice}" if running.advice else answer.goal,
            running.memory,
            answer.text,
            answer.admissible,
            len(episode.steps),
            agent.max_prompt_tokens,
            self._chat,
        )
        running.pending = Step(
            state=answer.state,
            observation=answer.text,
            admissible=answer.admissible,
            prompt_ids=prompt.ids,
            response_ids=[],
            log_probs=[],
            completion="",
            think="",
            action="",
            invalid=False,
            finish="",
            version=self.engine.version,
            truncated=prompt.full_tokens - len(prompt.ids),
        )
        seed = derive_seed(self.seed, "sampling", *running.keys, len(episode.steps))
        self.engine.submit(Request(number, prompt.ids, seed, agent.max_response_tokens, temperature))
        return False

    def _act(self, running: _Running, completion: Completion) -> str:
        """Reads the action out of a completion."""
        step = running.pending
        assert step is not None and running.observation is not None
        text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        parsed = parse(
            text,
            running.observation.admissible,
            self.protocol.agent.parser,
            self.protocol.agent.fallback_characters,
        )
        step.response_ids, step.log_probs, step.usage = completion.token_ids, completion.log_probs, completion.usage
        step.completion, step.finish, step.version = text, completion.finish, completion.version
        step.think, step.action, step.invalid = parsed.think, parsed.action, parsed.invalid
        return parsed.action
