"""`hgpo doctor`: what this machine has for each use, what is missing, and how to get it."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option("--use", "uses", multiple=True, help="Only this use; what it misses is then an error. [repeatable]")
@click.option(
    "--config", type=click.Path(), default=None, help="Look at the data and models of this configuration too."
)
def doctor(uses: tuple[str, ...], config: str | None) -> None:
    """Check Python, packages, GPUs, driver, Slurm, Apptainer, DVC, data, disk space and file limits.

    The exit code is 0 if nothing is missing for the uses named with --use, or for the base use without it.
    """
    from hgpo.errors import ConfigError
    from hgpo.provenance.machine import USES, examine, plain, verdicts

    unknown = [use for use in uses if use not in USES]
    if unknown:
        raise ConfigError(f"--use: unknown use {unknown[0]!r}; known are {', '.join(USES)}")
    looked_at = list(uses) or list(USES)
    findings = list(examine(looked_at, config))
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ModuleNotFoundError:  # one of the packages that are missing
        click.echo(plain(findings, looked_at))
    else:
        table = Table("use", "what", "found", "to mend")
        for finding in findings:
            cells = [escape(cell) for cell in (finding.use, finding.subject, finding.found, finding.mend)]
            table.add_row(*cells, style=None if finding.fine else "yellow")
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(table)
        for line in verdicts(findings, looked_at):
            console.print(line)
    required = uses or ("base",)
    sys.exit(int(any(not finding.fine for finding in findings if finding.use in required)))
