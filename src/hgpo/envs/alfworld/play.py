"""Playing a game by hand in the terminal."""

from __future__ import annotations

from pathlib import Path

import click

from hgpo.envs.alfworld.compiled import load_game
from hgpo.envs.alfworld.game import Game
from hgpo.envs.alfworld.sources import GAME, SPLITS, open_source
from hgpo.envs.terminal import ask
from hgpo.errors import DataError


def play(data: Path, task: str | None = None, split: str | None = None) -> None:
    """Reads commands, or their numbers, until the task is won or the player says `quit` (or sends end of file)."""
    source = open_source(data)
    splits = [split] if split else [name for name in SPLITS if source.trials(name)]
    tasks = [name for name in sorted(source.trials(splits[0])) if source.has(name, GAME)] if splits else []
    if not tasks:
        raise DataError(f"{source.name} has no game of split {split or SPLITS[0]}", f"name one of {', '.join(SPLITS)}")
    task = task or tasks[0]
    if not source.has(task, GAME):
        raise DataError(f"{source.name} has no game {task!r}", f"name a folder below the data, e.g. {tasks[0]}")
    compiled = load_game(source.read(task, GAME), f"{source.name}/{task}/{GAME}")
    game = Game()
    try:
        click.secho(task, dim=True)
        moment = game.reset(compiled)
        steps = 0
        while True:
            click.echo(f"\n{moment.feedback}\n")
            if moment.won:
                click.secho(f"won in {steps} steps", fg="green")
                return
            command = ask(moment.admissible)
            if command is None:
                return
            moment = game.step(command)
            steps += 1
    finally:
        game.close()
