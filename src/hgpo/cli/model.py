"""`hgpo fetch-model`: models from the hub, before jobs that have no network."""

from __future__ import annotations

from pathlib import Path

import click

from hgpo.cli.options import config_option, model_option
from hgpo.config import check_model, load_config


@click.command("fetch-model")
@config_option
@model_option
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write what was found, as JSON.")
def fetch_model(config: str, model: str, out: Path) -> None:
    """Fetch a model at its pinned revision and check every file's hash. HF_HOME names the cache."""
    from hgpo.files import write_json
    from hgpo.provenance.models import fetch_model as fetch

    settings = load_config(config)
    check_model(settings, model)
    record = fetch(model, settings.models[model])
    write_json(out, record)
    click.echo(f"{model}: {record['source']}, {len(record.get('files', {}))} files")
