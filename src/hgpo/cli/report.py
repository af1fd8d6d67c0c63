"""`hgpo tables`, `hgpo figures`, `hgpo summary`: from episodes and metrics to what a reader sees."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hgpo.config import load_config
from hgpo.errors import DataError

_config = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Configuration."
)


@click.command()
@_config
def tables(config: Path) -> None:
    """Write the tables (Markdown, CSV, LaTeX, HTML) from evaluation episodes and training metrics."""
    from hgpo.reporting.build import kept_tables, write_tables
    from hgpo.reporting.collect import data_away

    experiment = load_config(config)
    kept = kept_tables(experiment)
    _say(write_tables(experiment))
    for name in kept:
        click.echo(f"kept {name} as it was: the data of {', '.join(data_away(experiment))} are not here")


@click.command()
@_config
def figures(config: Path) -> None:
    """Draw the figures (PDF, SVG, PNG) from training metrics and evaluation episodes."""
    from hgpo.reporting.build import write_figures

    _say(write_figures(load_config(config)))


@click.command()
@_config
def summary(config: Path) -> None:
    """Print the results table and where table, figures and report lie."""
    folder = load_config(config).folder
    table = folder / "tables" / "results.md"
    if not table.exists():
        raise DataError(f"there is no results table at {table}", f"run `hgpo tables --config {config}` first")
    click.echo(table.read_text(encoding="utf-8"))
    click.echo(f"table    {table}")
    for figure in sorted((folder / "figures").glob("*.png")):
        click.echo(f"figure   {figure}")
    for what, path in (("report", "report.html"), ("viewer", "viewer/index.html"), ("manifest", "manifest.json")):
        if (folder / path).exists():
            click.echo(f"{what:8} {folder / path}")


def _say(paths: list[Path]) -> None:
    """Prints what was written and what was not; the last path is the listing of both."""
    for path in paths:
        click.echo(path)
    for name, reason in json.loads(paths[-1].read_text(encoding="utf-8"))["missing"].items():
        click.echo(f"no {name}: {reason}")
