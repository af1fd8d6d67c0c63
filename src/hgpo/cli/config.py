"""`hgpo config`: check a configuration, print its JSON schema, list its runs."""

from __future__ import annotations

import json

import click

from hgpo.config import Config, check_chat, load_config, plan_left_out, plan_runs


def schema_text() -> str:
    """The JSON schema of the configuration, as it lies in `workflow/schemas/config.schema.json`."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | Config.model_json_schema(), indent=2, sort_keys=True) + "\n"


@click.group()
def config() -> None:
    """Check a configuration, print its schema or its runs."""


@config.command()
@click.argument("file", type=click.Path())
def check(file: str) -> None:
    """Check FILE and print how many runs it holds, and which cells of its matrix cannot be done, and why."""
    checked = load_config(file)
    for run in plan_runs(checked):
        check_chat(checked, run.model, run.environment)
    count = len(plan_runs(checked))
    click.echo(f"{file}: {count} run{'s' * (count != 1)}")
    for run, reason in plan_left_out(checked).items():
        click.echo(f"left out: {run}: {reason}")


@config.command()
def schema() -> None:
    """Print the JSON schema of the configuration."""
    click.echo(schema_text(), nl=False)


@config.command()
@click.argument("file", type=click.Path())
def runs(file: str) -> None:
    """List the training runs of FILE, one a line."""
    for run in plan_runs(load_config(file)):
        click.echo(str(run))
