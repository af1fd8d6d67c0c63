"""`hgpo evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from hgpo.cli.options import config_option, environment_option, history_option, model_option
from hgpo.config import Run, check_model, load_config
from hgpo.errors import ConfigError

METHODS = "What is evaluated: a method, warm_start, random, expert, zero_shot, react or reflexion."


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path), required=False)
@config_option
@model_option
@environment_option
@click.option("--method", required=True, help=METHODS)
@history_option
@click.option("--training-seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--split", "splits", multiple=True, help="Name of a split: in_domain, out_of_domain, test. Default: all.")
@click.option(
    "--seed", "seeds", type=click.IntRange(0), multiple=True, help="Evaluation seed. Default: all of `evaluation`."
)
@click.option("--out", type=click.Path(path_type=Path), help="Episodes file; default: its place in the results folder.")
def evaluate(
    checkpoint: Path | None,
    config: str,
    model: str,
    environment: str,
    method: str,
    history: int,
    training_seed: int,
    splits: tuple[str, ...],
    seeds: tuple[int, ...],
    out: Path | None,
) -> None:
    """Evaluate CHECKPOINT: every task of each split's panel once for each seed.

    Baselines go without CHECKPOINT: random and expert play by rule, zero_shot, react and reflexion prompt the model
    as the configuration names it, from its folder, the hub's cache, or behind an endpoint.

    Interrupted, it goes on where it stopped when it is run again. Options --split and --seed may be repeated.
    """
    from hgpo.evaluation.evaluate import evaluate_all

    settings = load_config(config)
    check_model(settings, model)
    run = Run(model, environment, method, history, training_seed)
    splits = splits or tuple(settings.environment(environment).evaluation_splits)
    seeds = seeds or tuple(settings.evaluation.seeds)
    if out is not None and len(splits) * len(seeds) != 1:
        raise ConfigError("--out is one file, but several are to be written", "name one --split and one --seed")
    wanted = {(split, seed): out or run.episodes(settings, split, seed) for split in splits for seed in seeds}
    for path in evaluate_all(settings, run, checkpoint, wanted):
        click.echo(str(path))
