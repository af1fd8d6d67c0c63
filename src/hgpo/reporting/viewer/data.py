"""The viewer's data: an index of all episodes, and blocks of whole tasks with their steps."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from hgpo.config import Config
from hgpo.reporting.viewer.groups import SHOWN, group_columns, options_of, returns_of
from hgpo.reporting.viewer.sources import TRAINING, Source, episodes_of, steps_of

STEPS_IN_BLOCK = 600
TEXTS = ("state", "observation", "think", "action", "completion", "finish")


class Interned:
    """Texts by number: each text is written once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


class ViewerData:
    """Answers what the page asks for: `index`, or `<source>-<block>`."""

    def __init__(self, config: Config, sources: list[Source], title: str) -> None:
        self.config, self.sources, self.title = config, sources, title
        self._episodes = [episodes_of(source).rename_axis("row").reset_index() for source in sources]
        self._block = [_blocks(frame) for frame in self._episodes]
        self._steps = lru_cache(maxsize=4)(self._load_steps)

    def names(self) -> list[str]:
        """Every name that `script` knows."""
        blocks = [f"{s}-{b}" for s, numbers in enumerate(self._block) for b in sorted(set(numbers.tolist()))]
        return ["index", *blocks]

    def script(self, name: str) -> str:
        """The JavaScript that hands the named data to the page. Raises KeyError for an unknown name."""
        if name == "index":
            body = self._index()
        else:
            source, _, block = name.partition("-")
            if not (source.isdecimal() and block.isdecimal() and int(source) < len(self.sources)):
                raise KeyError(name)
            body = self._block_of(int(source), int(block), name)
        text = json.dumps(body, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return f"hgpoData({json.dumps(name)},{text.replace('<', chr(92) + 'u003c')});\n"

    def _index(self) -> dict[str, Any]:
        tasks, types, goals = Interned(), Interned(), Interned()
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for number, (frame, blocks) in enumerate(zip(self._episodes, self._block, strict=True)):
            columns["source"] += [number] * len(frame)
            columns["block"] += blocks.tolist()
            columns["task"] += [tasks(t) for t in frame["task"]]
            columns["type"] += [types(t) for t in frame["task_type"]]
            columns["goal"] += [goals(t) for t in frame["goal"]]
            columns["won"] += frame["won"].astype(int).tolist()
            columns["score"] += frame["score"].round(4).tolist()
            columns["reward"] += frame["reward"].round(4).tolist()
            columns["failed"] += frame["failed"].tolist()
            for name, column in (("rollout", "rollout"), ("steps", "steps"), ("invalid", "invalid_actions")):
                columns[name] += frame[column].astype(int).tolist()
        sources = [
            [s.kind, s.run.model, s.run.environment, s.run.method, s.run.history, s.run.seed, s.place]
            for s in self.sources
        ]
        lists = {"tasks": tasks.texts, "types": types.texts, "goals": goals.texts}
        return {"title": self.title, "sources": sources, "episodes": columns} | lists

    def _block_of(self, number: int, block: int, name: str) -> dict[str, Any]:
        frame = self._episodes[number][self._block[number] == block]
        if frame.empty:
            raise KeyError(name)
        source, (steps, places) = self.sources[number], self._steps(number)
        texts = Interned()
        episodes = []
        for row in frame.to_dict("records"):
            trials = [steps.iloc[where].to_dict("records") for where in _trials(source, row, places)]
            episodes.append(
                {
                    "row": int(row["row"]),
                    "rollout": int(row["rollout"]),
                    "trials": [len(trial) for trial in trials],
                    "steps": [_step(record, texts) for trial in trials for record in trial],
                }
            )
        body: dict[str, Any] = {"texts": texts.texts, "episodes": episodes}
        if source.kind == TRAINING:
            options = options_of(self.config, source.run, "hgpo")
            body["groups"] = {"history": options["history"], "context": options.get("context", "states")}
        return body

    def _load_steps(self, number: int) -> tuple[pd.DataFrame, dict[str, slice]]:
        """Steps of a source with what is computed from them, and where each trajectory lies."""
        source = self.sources[number]
        steps = steps_of(source)
        if steps.empty:
            return steps, {}
        steps["return"] = returns_of(self.config, source.run, steps)
        if source.kind == TRAINING:
            steps = steps.assign(**group_columns(self.config, source.run, steps))
        first = np.flatnonzero(steps["trajectory"].ne(steps["trajectory"].shift()).to_numpy())
        ends = [*first[1:].tolist(), len(steps)]
        names = steps["trajectory"].iloc[first].tolist()
        return steps, {n: slice(a, b) for n, a, b in zip(names, first.tolist(), ends, strict=True)}


_COLUMNS = (
    "source",
    "block",
    "task",
    "type",
    "goal",
    "rollout",
    "won",
    "score",
    "steps",
    "reward",
    "invalid",
    "failed",
)


def _trials(source: Source, row: dict[str, Any], places: dict[str, slice]) -> list[slice]:
    """Where the steps of an episode lie: one slice, or one for each trial, in time, where it took several."""
    if source.kind == TRAINING:
        return [places[row["trajectory"]]]
    names = (f"{row['task']}#{number}" for number in range(row["rollout"] + 1))
    return [places.get(name, slice(0, 0)) for name in names]


def _blocks(episodes: pd.DataFrame) -> np.ndarray:
    """The block of each episode, int64, shape (n,): whole tasks, of about STEPS_IN_BLOCK steps together."""
    by_task = episodes.groupby("task", sort=False)["steps"].sum()
    before = by_task.cumsum() - by_task
    return episodes["task"].map(before // STEPS_IN_BLOCK).rank(method="dense").to_numpy(np.int64) - 1


def _step(record: dict[str, Any], texts: Interned) -> dict[str, Any]:
    step: dict[str, Any] = {name: texts(record[name]) for name in TEXTS}
    step["admissible"] = [texts(action) for action in record["admissible"]]
    step |= {"invalid": bool(record["invalid"]), "reward": float(record["reward"]), "return": float(record["return"])}
    step |= {"tokens": [int(record["prompt_tokens"]), int(record["response_tokens"])]}
    if "levels" in record:
        step |= {"levels": record["levels"], "used": float(record["advantage"])}
        step |= {name: float(record[name]) for name in SHOWN}
    return step
