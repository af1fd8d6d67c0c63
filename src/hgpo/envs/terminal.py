"""Playing by hand: asking a person for the next action."""

from __future__ import annotations

from collections.abc import Sequence

import click


def ask(admissible: Sequence[str]) -> str | None:
    """Lists what can be done and reads an action, or its number in the list; None if the person wants to stop."""
    click.secho("an action, its number, or `quit`:", dim=True)
    for number, action in enumerate(admissible, start=1):
        click.echo(f"{number:4d}  {action}")
    try:
        answer = click.prompt(">", prompt_suffix=" ").strip()
    except click.Abort:
        return None
    if answer in ("quit", "exit", "q"):
        return None
    if answer.isdigit() and 1 <= int(answer) <= len(admissible):
        answer = admissible[int(answer) - 1]
        click.secho(f"> {answer}", bold=True)
    return answer
