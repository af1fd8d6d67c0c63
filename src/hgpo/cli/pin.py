"""`hgpo pin` and `hgpo reproduce`: results kept with DVC, and derived again from them."""

from __future__ import annotations

from pathlib import Path

import click

from hgpo.cli.options import config_option
from hgpo.config import load_config


@click.group()
def pin() -> None:
    """Keep data, checkpoints and episodes of an experiment with DVC."""


@pin.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("pins"), show_default=True)
@click.option("--remote", help="Where DVC pushes to: a folder, or a URL such as s3://bucket/path or ssh://host/path.")
def init(folder: Path, remote: str | None) -> None:
    """Set DVC up in this project: cache by links, and the remote."""
    from hgpo.provenance.pins import initialise
    from hgpo.provenance.remote import default_remote

    before = default_remote() if remote and Path(".dvc").is_dir() else None
    new = initialise(folder, remote, replace=True)
    click.echo(f"pins go to {folder}" + (f" and {remote}" if remote else "; the remote stays as it is"))
    if before and new:
        click.echo(f"the remote was {before}: what the new one does not hold has to be pushed anew (`dvc push`)")


@pin.command()
@config_option
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the list of pins, as JSON.")
def add(config: str, out: Path | None) -> None:
    """Pin a finished experiment, and push it if there is a remote.

    What is not as its records say (files, checkpoints, data; see `hgpo verify`) is refused.
    """
    from hgpo.files import write_json
    from hgpo.provenance.pins import add as add_pins

    pinned = add_pins(load_config(config))
    if out is not None:
        write_json(out, {"pins": {str(path): path.read_text(encoding="utf-8") for path in pinned.files}})
    for path in pinned.files:
        click.echo(str(path))
    if pinned.remote:
        click.echo(f"pushed to {pinned.remote}")
    else:
        click.echo("nothing was pushed: there is no remote. Name one: hgpo pin init --remote URL; then: dvc push")
    click.echo(f"keep them: git add {pinned.files[0].parent} .dvc .dvcignore && git commit")


@pin.command()
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("pins"), show_default=True)
def pull(name: str, folder: Path) -> None:
    """Fetch the pinned experiment NAME and lay it out as results and data."""
    from hgpo.provenance.pins import pull as pull_pins

    config = pull_pins(name, folder)
    click.echo(f"{config.folder}: as pinned")


@click.command()
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("pins"), show_default=True, help="The pins.")
@click.option("--evaluate", is_flag=True, help="Evaluate the pinned checkpoints again, too; never trains.")
@click.option("--offline", is_flag=True, help="The pinned folders are here, as in a review bundle: do not ask DVC.")
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True)
def reproduce(name: str, folder: Path, evaluate: bool, offline: bool, cores: int) -> None:
    """Derive the tables of the pinned experiment NAME again, in results/NAME-again, and compare them.

    Without --evaluate from the pinned episodes, with it from the pinned checkpoints. Exit code 1 if a table differs.
    """
    from hgpo.provenance.reproduce import reproduce as run

    found = run(name, folder, evaluate, cores, offline)
    for line in found.differences:
        click.secho(f"differs: {line}", fg="red")
    click.echo(f"{found.results}: {found.equal} of {found.equal + len(found.differences)} tables are as pinned")
    raise click.exceptions.Exit(int(bool(found.differences)))
