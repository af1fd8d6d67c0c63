"""ALFWorld behind the project's `Environment` protocol."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

from hgpo.envs.alfworld.compiled import CompiledGame, load_game, read_game
from hgpo.envs.alfworld.game import Game, Moment
from hgpo.envs.alfworld.sources import GAME
from hgpo.envs.base import Observation
from hgpo.errors import DataError, EnvironmentFailure, HgpoError
from hgpo.tasks import Task

GOAL = "Your task is to: "
KEPT = 8  # games of some megabytes
_expected: dict[tuple[str, str], CompiledGame] = {}
_shared: weakref.WeakValueDictionary[tuple[str, str], CompiledGame] = weakref.WeakValueDictionary()


def game_folder(data: Path, task: str) -> Path:
    """The folder of a task's files below a prepared data folder."""
    return data / "games" / task


def split_intro(raw: str) -> tuple[str, str]:
    """The engine's first text as (room description, goal): without the banner, the goal without its full stop."""
    banner, room, goal = (raw.split("\n\n", 2) + ["", ""])[:3]
    if not banner.startswith("-=") or not goal.startswith(GOAL):
        raise DataError(f"the game begins with an unknown text: {raw[:80]!r}", "replace the game file")
    return room.strip(), goal.removeprefix(GOAL).strip().removesuffix(".")


class AlfworldEnvironment:
    """One running ALFWorld task.

    Observation texts are the engine's, only that of `reset` comes without the banner and the goal sentence; `raw_text`
    is the engine's last text untouched. The state by which steps are compared is the observation text. An action that
    is not admissible is answered "Nothing happens.", as in the engine. An episode ends when the task is won.

    data: a folder that `prepare` wrote. cache: where compiled games are kept, by default the user's cache folder.
    Environments of one process that play the same game share what does not change.
    """

    def __init__(self, data: str | Path, cache: Path | None = None) -> None:
        self._data = Path(data)
        self._cache = cache
        self._game = Game()
        self._done = True
        self.raw_text = ""

    def expect(self, task: Task) -> None:
        """Compiles a task's game, which takes seconds the first time, and keeps the latest few for `reset`, of any
        environment in this process."""
        path = game_folder(self._data, task.id) / GAME
        _expected[str(path), task.content] = _load(path, task.content, self._cache)
        while len(_expected) > KEPT:
            del _expected[next(iter(_expected))]

    def reset(self, task: Task) -> Observation:
        """Starts a task. Raises DataError if its game file is missing, corrupt, or not the one the task names."""
        self._done = True
        self.folder = game_folder(self._data, task.id)
        path = self.folder / GAME
        compiled = _load(path, task.content, self._cache)
        _expected.pop((str(path), task.content), None)
        moment = self._guarded(lambda: self._game.reset(compiled))
        text, self._goal = split_intro(moment.feedback)
        self._done = moment.won
        return self._observe(moment, text, 0.0)

    def step(self, action: str) -> Observation:
        """Raises EnvironmentFailure after the end of an episode or if the engine breaks."""
        if self._done:
            raise EnvironmentFailure("the ALFWorld episode has ended", "call reset before the next step")
        moment = self._guarded(lambda: self._game.step(action))
        self._done = moment.won
        return self._observe(moment, moment.feedback, float(moment.won))

    def close(self) -> None:
        self._done = True
        self._game.close()

    def facts(self) -> list[tuple[str, tuple[str, ...]]]:
        """All that is true in the world, hidden from agents: (predicate, object names), sorted."""
        return list(self._game.facts())

    def trajectory(self) -> dict[str, Any]:
        """The task's `traj_data.json`: type and parameters. Raises DataError if it is missing or corrupt."""
        path = self.folder / "traj_data.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}", "restore the file from the data's source") from None

    def _observe(self, moment: Moment, text: str, reward: float) -> Observation:
        self.raw_text = moment.feedback
        return Observation(
            text=text,
            state=text,
            admissible=moment.admissible,
            goal=self._goal,
            reward=reward,
            score=float(moment.won),
            done=moment.won,
            won=moment.won,
        )

    def _guarded(self, call: Any) -> Moment:
        try:
            return call()
        except HgpoError:
            raise
        except Exception as error:
            raise EnvironmentFailure(f"the ALFWorld engine broke in {self.folder}: {error!r}") from error


def _load(path: Path, content: str, cache: Path | None) -> CompiledGame:
    key = (str(path), content)
    game = _shared.get(key)
    if game is None:
        game = _shared[key] = load_game(read_game(path), path, content, cache)
    return game
