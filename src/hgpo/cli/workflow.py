"""`hgpo report`: the Snakemake report of a finished experiment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from hgpo.config import load_config
from hgpo.errors import DataError
from hgpo.files import atomic_path, write_sums


@click.command()
@click.option("--config", "config_file", type=click.Path(), required=True, help="Configuration of the experiment.")
@click.option("--out", type=click.Path(), default=None, help="The HTML file. [default: results/<name>/report.html]")
@click.option("--viewer", is_flag=True, help="Write the page of `hgpo view` beside it, into results/<name>/viewer.")
def report(config_file: str, out: str | None, viewer: bool) -> None:
    """Write the Snakemake report of the tables and figures: one HTML file that opens without a network.

    Its hash is written beside it, as HTML_FILE.sha256.
    """
    config = load_config(config_file)
    target = Path(out) if out else config.folder / "report.html"
    if not Path("Snakefile").is_file():
        raise DataError("no Snakefile in this folder", "run the command in the folder of the workflow")
    with atomic_path(target) as temporary:
        file = temporary.with_suffix(".html")
        command = [sys.executable, "-m", "snakemake", "tables", "figures", "--configfile", config_file]
        command += ["--nolock", "--report", str(file)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if result.returncode != 0 or not file.is_file():
            file.unlink(missing_ok=True)
            raise DataError(
                f"no report for {config_file}: {result.stderr.strip() or result.stdout.strip()}",
                f"finish the experiment first: snakemake --configfile {config_file} --cores 2",
            )
        file.replace(temporary)
    write_sums(target.with_name(f"{target.name}.sha256"), [target])
    click.echo(f"report: {target}")
    if viewer:
        from hgpo.reporting.viewer.data import ViewerData
        from hgpo.reporting.viewer.site import write_site
        from hgpo.reporting.viewer.sources import find_sources

        data = ViewerData(config, find_sources(config), config.name)
        click.echo(f"viewer: {write_site(data, config.folder / 'viewer')}")
