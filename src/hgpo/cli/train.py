"""`hgpo warm-start` and `hgpo train`."""

from __future__ import annotations

import click

from hgpo.cli.options import config_option, environment_option, history_option, method_option, model_option
from hgpo.config import Run, load_config


@click.command("warm-start")
@config_option
@model_option
@environment_option
@history_option
def warm_start(config: str, model: str, environment: str, history: int) -> None:
    """Fine-tune a base model on expert episodes of training tasks.

    All methods and training seeds of (model, environment, K) start from this one checkpoint.
    """
    from hgpo.training.warm_start import make_start

    settings = load_config(config)
    folder = Run(model, environment, "warm_start", history, 0).start_folder(settings)
    record = make_start(settings, model, environment, history, folder)
    click.echo(f"{folder}: {record.get('turns', 0)} turns learnt, hash {record['hash'][:12]}")


@click.command()
@config_option
@model_option
@environment_option
@method_option
@history_option
@click.option("--seed", type=click.IntRange(0), required=True, help="Training seed.")
@click.option("--allow-config-change", is_flag=True, help="Go on from a checkpoint of another configuration.")
def train(
    config: str, model: str, environment: str, method: str, history: int, seed: int, allow_config_change: bool
) -> None:
    """Train one model with one method on one environment.

    Run it again after an interruption and it goes on from the newest checkpoint. SIGTERM, SIGUSR1, SIGHUP and
    Ctrl-C save the state first; the exit code is then 75.
    """
    from hgpo.training.loop import train as train_run
    from hgpo.training.signals import StopSignal

    settings = load_config(config)
    with StopSignal() as stopped:
        run = Run(model, environment, method, history, seed)
        finished = train_run(settings, run, stopped, allow_config_change)
    click.echo(str(finished))
