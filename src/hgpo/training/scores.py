"""Scores of steps: what learner and critic say of them before they learn, computed at once or beside the rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hgpo.rollout.episode import Episode, Step
from hgpo.training.batches import Row

Score = Callable[[Sequence[Row]], Sequence[Any]]  # one result for each row, in their order
IN_FLIGHT = 2  # blocks asked for at once, so that the learner need not wait for the next


class Group:
    """The rollouts of one task, cut into blocks as they are played.

    A slice is the steps that the rollouts have at one position in time; a block is consecutive slices of at most
    `tokens` tokens, or one larger slice. So blocks depend on what was played, not on when.
    """

    def __init__(self, rollouts: int, tokens: int) -> None:
        self._rollouts, self._most = rollouts, tokens
        self._under_way: dict[int, Episode] = {}
        self._ended: dict[int, Episode] = {}
        self._slices = 0  # in a block or waiting for one
        self._waiting: list[tuple[Episode, int]] = []
        self._tokens = 0

    def take(self, episode: Episode, ended: bool) -> list[list[tuple[Episode, int]]]:
        """The blocks of (episode, step) that are whole now that `episode` has begun, taken a step or ended.

        No more of them once a rollout has lost its environment: nobody learns from its task.
        """
        self._under_way.pop(episode.rollout, None)
        (self._ended if ended else self._under_way)[episode.rollout] = episode
        if len(self._under_way) + len(self._ended) < self._rollouts or any(e.failed for e in self._ended.values()):
            return []
        episodes = [episode for _, episode in sorted((self._under_way | self._ended).items())]
        whole = min((len(e.steps) for e in self._under_way.values()), default=max(len(e.steps) for e in episodes))
        blocks = []
        for position in range(self._slices, whole):
            piece = [(e, position) for e in episodes if position < len(e.steps)]
            tokens = sum(len(row_of(e.steps[position])) for e, _ in piece)
            if self._waiting and self._tokens + tokens > self._most:
                blocks.append(self._flush())
            self._waiting += piece
            self._tokens += tokens
        self._slices = max(self._slices, whole)
        if not self._under_way and self._waiting:
            blocks.append(self._flush())
        return blocks

    def _flush(self) -> list[tuple[Episode, int]]:
        block, self._waiting, self._tokens = self._waiting, [], 0
        return block


class Scores:
    """Computes scores when they are asked for. scores: by name, what is wanted of every step."""

    def __init__(self, scores: Mapping[str, Score]) -> None:
        self._scores = scores

    def watch(self, episode: Episode, ended: bool) -> None:
        """Hears that an episode has begun, taken a step or ended."""

    def wait(self) -> None:
        """Until all that was begun is computed."""

    def of(self, name: str, episodes: Sequence[Episode]) -> list[Any]:
        """One score of every step, episode after episode."""
        rows = [row_of(step) for episode in episodes for step in episode.steps]
        return list(self._scores[name](rows))

    def close(self) -> None:
        """Gives up what has not begun, and waits for the rest: the learner is free then."""


class ScoresBeside(Scores):
    """Computes scores in threads, block by block, while other steps are still being played.

    rollouts: of a task. tokens: most of a block, see `Group`.

    What comes out depends neither on timing nor on the order in which blocks are whole.
    """

    def __init__(self, scores: Mapping[str, Score], rollouts: int, tokens: int) -> None:
        super().__init__(scores)
        self._rollouts, self._tokens = rollouts, tokens
        self._groups: dict[str, Group] = {}
        self._threads = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="scores")
        self._asked: list[Future[None]] = []
        self._of: dict[tuple[str, int], dict[str, Any]] = {}

    def watch(self, episode: Episode, ended: bool) -> None:
        """As above. Raises what went wrong with scores so far."""
        answered = [asked for asked in self._asked if asked.done()]
        self._asked = [asked for asked in self._asked if asked not in answered]
        for asked in answered:
            asked.result()
        group = self._groups.setdefault(episode.task, Group(self._rollouts, self._tokens))
        for block in group.take(episode, ended):
            self._asked.append(self._threads.submit(self._compute, block))

    def _compute(self, block: list[tuple[Episode, int]]) -> None:
        rows = [row_of(episode.steps[step]) for episode, step in block]
        for name, score in self._scores.items():
            for (episode, step), value in zip(block, score(rows), strict=True):
                self._of.setdefault((episode.trajectory, step), {})[name] = value

    def wait(self) -> None:
        """As above. Raises what went wrong."""
        for asked in self._asked:
            asked.result()
        self._asked = []

    def of(self, name: str, episodes: Sequence[Episode]) -> list[Any]:
        return [self._of[episode.trajectory, step][name] for episode in episodes for step in range(len(episode.steps))]

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


def row_of(step: Step) -> Row:
    return Row(step.prompt_ids, step.response_ids)
