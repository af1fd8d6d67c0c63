"""`hgpo env`: check, time, compile and play an environment.

Each environment brings its own three modules, imported only when they are called for:

| command | function |
|---|---|
| `check NAME --episodes FILE` | `hgpo.envs.NAME.fidelity.check_episodes(data: Path, episodes: Path) -> Fidelity` |
| `check NAME --search FILE` | `hgpo.envs.NAME.fidelity.check_search(data: Path, search: Path) -> Fidelity` |
| `bench NAME` | `hgpo.envs.NAME.bench.bench(data: Path, environments: int, workers: int, **options) -> None` (prints) |
| `compile NAME` | `hgpo.envs.NAME.compiling.compile_all(data: Path, workers: int) -> int` (tasks compiled) |
| `play NAME` | `hgpo.envs.NAME.play.play(data: Path, task: str or None, split: str or None) -> None` |

A module without the function means that the environment does not offer it. `Fidelity` is `hgpo.envs.fidelity.Fidelity`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hgpo.config import ENVIRONMENTS

_name = click.argument("name", metavar="ENVIRONMENT", type=click.Choice(ENVIRONMENTS))
_data = click.option(
    "--data", type=click.Path(exists=True, path_type=Path), required=True, help="A prepared or an official data folder."
)


@click.group()
def env() -> None:
    """Check, time, compile and play an environment."""


@env.command()
@_name
@_data
@click.option("--episodes", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Recorded episodes.")
@click.option("--search", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Recorded rankings.")
def check(name: str, data: Path, episodes: Path | None, search: Path | None) -> None:
    """Replay recorded episodes or rankings and compare every step; exit code 1 if any differs."""
    if episodes is None and search is None:
        raise click.UsageError("name what to replay: --episodes FILE, --search FILE, or both")
    identical = True
    for function, file in (("check_episodes", episodes), ("check_search", search)):
        if file is not None:
            result = _offered(name, "fidelity", function)(data, file)
            click.echo(result.report())
            identical = identical and result.passed
    if not identical:
        raise click.exceptions.Exit(1)


@env.command()
@_name
@_data
@click.option("--envs", type=click.IntRange(1), default=8, show_default=True, help="Environments in all.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that host them.")
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True, help="Steps for each environment.")
@click.option("--stock/--no-stock", default=True, show_default=True, help="Time the unmodified package beside ours.")
def bench(name: str, data: Path, envs: int, workers: int, steps: int, stock: bool) -> None:
    """Time loading and stepping, and weigh each further environment."""
    _offered(name, "bench", "bench")(data, envs, workers, steps=steps, stock=stock)


@env.command("compile")
@_name
@_data
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that compile.")
def compile_tasks(name: str, data: Path, workers: int) -> None:
    """Do for every task of a prepared folder what its first load would take; kept in HGPO_CACHE."""
    click.echo(f"{_offered(name, 'compiling', 'compile_all')(data, workers)} tasks of {name} are compiled")


@env.command()
@_name
@_data
@click.option("--task", help="Task id; without it, the first of the split.")
@click.option("--split", help="Split to take the task from.")
def play(name: str, data: Path, task: str | None, split: str | None) -> None:
    """Play one task by hand in the terminal."""
    _offered(name, "play", "play")(data, task, split)


def _offered(name: str, module: str, function: str) -> Callable[..., Any]:
    try:
        loaded = importlib.import_module(f"hgpo.envs.{name}.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"hgpo.envs.{name}.{module}":
            raise
        loaded = None
    if not hasattr(loaded, function):
        raise click.UsageError(f"{name} does not offer this: it has no `{function}`")
    return getattr(loaded, function)
