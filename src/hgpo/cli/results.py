"""`hgpo manifest`, `hgpo verify`, `hgpo compare`, `hgpo view`: trust, compare and look into results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from hgpo.cli.options import config_option
from hgpo.config import Config, load_config
from hgpo.errors import DataError


@click.command()
@config_option
def manifest(config: str) -> None:
    """Write manifest.json: what every file and every table row was made from. After tables and figures."""
    from hgpo.provenance.manifest import write_manifest

    click.echo(str(write_manifest(load_config(config))))


@click.command()
@config_option
def verify(config: str) -> None:
    """Hash all files and compute all tables again, and compare with the manifest; exit code 1 if anything differs."""
    from hgpo.provenance.verify import verify as verify_results

    found = verify_results(load_config(config))
    for missing in summed_up(found.absent):
        click.echo(f"not here, not checked: {missing}")
    for setting in found.aside:
        click.echo(f"another setting, on which no result depends: {setting}")
    for difference in found.differences:
        click.secho(f"differs: {difference}", fg="red")
    checked = ", ".join(f"{count} {what}" for what, count in found.checked.items())
    if found.differences:
        count = len(found.differences)
        click.echo(f"{count} difference{'s' * (count != 1)}; checked: {checked}")
        raise click.exceptions.Exit(1)
    click.echo(f"verified: {checked}; every table is what the episodes give")


def summed_up(lines: Iterable[str]) -> Iterator[str]:
    """The lines; of more than three that begin with the same two words only the first, and how many there are."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(" ".join(line.split()[:2]), []).append(line)
    for those in alike.values():
        yield from those if len(those) <= 3 else [f"{those[0]}, and {len(those) - 1} more of the kind"]


@click.command()
@click.argument("a", type=click.Path(exists=True, path_type=Path))
@click.argument("b", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write the table to.")
def compare(a: Path, b: Path, out: Path | None) -> None:
    """Compare two results side by side with tests. A and B: results folders, or configurations."""
    from hgpo.provenance.verify import config_differences
    from hgpo.reporting.collect import load_results
    from hgpo.reporting.side_by_side import side_by_side
    from hgpo.reporting.table import markdown, write

    one, other = results_config(a), results_config(b)
    table = side_by_side(load_results(one), load_results(other))
    click.echo(markdown(table))
    ignored = {"name", "results"}
    differences = config_differences(
        one.model_dump(mode="json", exclude=ignored), other.model_dump(mode="json", exclude=ignored)
    )
    click.echo("Configurations (there: A, here: B): " + ("; ".join(differences) or "equal"))
    if out is not None:
        for path in write(table, out):
            click.echo(str(path))


def results_config(path: Path) -> Config:
    """The configuration of a results folder, wherever it lies now, or of a configuration file."""
    from hgpo.config.experiment import parse_config
    from hgpo.reporting.collect import read_json

    if path.is_file():
        return load_config(path)
    if (path / "config.yaml").exists():
        found = load_config(path / "config.yaml")
    elif manifest := read_json(path / "manifest.json"):
        found = parse_config(manifest.get("config"), f"{path}/manifest.json")
    else:
        raise DataError(f"{path} is no results folder: it holds neither config.yaml nor manifest.json")
    folder = path.resolve()
    return found.model_copy(update={"results": str(folder.parent), "name": folder.name})


@click.command()
@click.argument("path", metavar="RUN_OR_RESULTS", type=click.Path(exists=True, path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=8420, show_default=True, help="0: any free port.")
@click.option("--static", type=click.Path(path_type=Path), help="Write the page as files into this folder instead.")
def view(path: Path, port: int, static: Path | None) -> None:
    """Look into the episodes of a results folder, a configuration's results, or one run, in the browser."""
    from hgpo.reporting.viewer.data import ViewerData
    from hgpo.reporting.viewer.site import make_server, write_site
    from hgpo.reporting.viewer.sources import find_sources, run_of

    folder = path.resolve()
    is_run = folder.is_dir() and len(folder.parts) > 7 and folder.parts[-6] == "runs"
    config = results_config(folder.parents[5] if is_run else path)
    run = run_of(folder) if is_run else None
    data = ViewerData(config, find_sources(config, run), f"{config.name}: {run}" if run else config.name)
    if static is not None:
        _check_replaceable(static)
        click.echo(str(write_site(data, static)))
        return
    try:
        server = make_server(data, port)
    except OSError as error:
        raise DataError(f"port {port} cannot be opened: {error.strerror}", "choose another with --port") from None
    with server:
        click.echo(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)")
        server.serve_forever()


def _check_replaceable(folder: Path) -> None:
    if folder.exists() and not (folder / "viewer.js").exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} holds something else than a viewer page", "name a new or an empty folder")
