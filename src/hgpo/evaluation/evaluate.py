"""Evaluation of a policy: every task of a panel exactly once per seed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hgpo.config import Config, Run
from hgpo.envs.panels import verified_panel
from hgpo.errors import ConfigError, EnvironmentFailure
from hgpo.evaluation.players import Play, Player, make_player, open_player
from hgpo.evaluation.store import EpisodeStore
from hgpo.progress import progress
from hgpo.versions import code_commit, hardware, package_versions


def evaluate(config: Config, run: Run, checkpoint: Path | None, split: str, seed: int, out: Path) -> Path:
    """Plays every task of the split's panel once and writes the episodes to `out`; see `evaluate_all`."""
    return evaluate_all(config, run, checkpoint, {(split, seed): out})[0]


def evaluate_all(
    config: Config, run: Run, checkpoint: Path | None, wanted: Mapping[tuple[str, int], Path]
) -> list[Path]:
    """Plays every task of each split's panel once for each seed; the model is loaded once for all of them.

    checkpoint: a folder; None for the baselines `random` and `expert`, which have none, and for the others of the
        model as the configuration names it.
    wanted: (split, seed) -> where its episodes are written.

    Tasks are played in batches of `evaluation.batch_size` in panel order; a batch is kept as a whole, and a second
    run of the same evaluation goes on behind the last batch kept, with equal results.
    Raises ConfigError for an unknown split, CheckpointError for a checkpoint that cannot be used or is of another
    run, DataError if a file of `wanted` belongs to another evaluation.
    """
    player = make_player(config, run, checkpoint)
    shows = [_Show(config, player, split, seed, out) for (split, seed), out in wanted.items()]
    open_shows = [show for show in shows if not show.store.finished]
    if open_shows:
        with open_player(config, player) as plays:
            for show in open_shows:
                show.play(plays(show.split, show.seed))
    return [show.out for show in shows]


class _Show:
    """One panel played with one seed."""

    def __init__(self, config: Config, player: Player, split: str, seed: int, out: Path) -> None:
        run, protocol = player.run, config.environment(player.run.environment)
        if split not in protocol.evaluation_splits:
            raise ConfigError(
                f"environments.{run.environment}.evaluation_splits has no {split!r}",
                f"use one of {', '.join(protocol.evaluation_splits)}",
            )
        panel = verified_panel(config.data_folder(run.environment), run.environment, protocol.evaluation_splits[split])
        self.tasks, self.batch_size = panel.tasks[: config.evaluation.limit], config.evaluation.batch_size
        self.split, self.seed, self.out, self.label = split, seed, out, f"{run} {split} {seed}"
        metadata: dict[str, Any] = {
            "run": vars(run),
            "split": split,
            "panel": panel.split,
            "panel_hash": panel.hash,
            "panel_size": len(self.tasks),
            "evaluation_seed": seed,
            "packages": package_versions(),
            "hardware": hardware(),
            "commit": code_commit(),
        } | player.facts
        self.store = EpisodeStore(out, metadata)

    def play(self, play: Play) -> None:
        store = self.store
        with progress(total=len(self.tasks), initial=len(store.done), desc=self.label, unit="episode") as bar:
            for first in range(0, len(self.tasks), self.batch_size):
                batch = [task for task in self.tasks[first : first + self.batch_size] if task.id not in store.done]
                if not batch:
                    continue
                begin = time.monotonic()
                episodes = play(batch)
                lost = [episode for episode in episodes if episode.failed]
                if lost:
                    raise EnvironmentFailure(
                        f"{len(lost)} of {len(episodes)} tasks were not played; first: {lost[0].task}: "
                        f"{lost[0].failed}",
                        "run `hgpo panel verify`; tasks already evaluated are kept",
                    )
                store.append(episodes, (time.monotonic() - begin) / len(episodes))
                bar.update(len(episodes))
        store.finish()
