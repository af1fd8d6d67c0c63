"""Which tables and figures a finished experiment has: what the workflow declares as outputs."""

from __future__ import annotations

from hgpo.config import BASELINES, Config


def expected_tables(config: Config) -> list[str]:
    """Names of the tables that a finished experiment of this configuration has at least, sorted."""
    matrix = config.matrix
    hgpo = [method for method in matrix.methods if config.method(method).estimator == "hgpo"]
    names = {"results", "paper", "leakage", *(f"types_{environment}" for environment in matrix.environments)}
    names |= {"webshop"} if "webshop" in matrix.environments else set()
    names |= {"cost"} if _trained(config) else set()
    trainable = any(config.models[model].trainable for model in matrix.models)
    if not trainable:  # endpoints only: nothing is trained, nothing compared
        return sorted(names)
    names |= {"comparisons"} if len(matrix.methods) > 1 and set(matrix.methods) - set(BASELINES) else set()
    names |= {"ablation"} if len(hgpo) > 1 else set()
    return sorted(names)


def expected_figures(config: Config) -> list[str]:
    """Names of the figures that a finished experiment of this configuration has at least, sorted."""
    names = {"task_types"}
    splits = {split for e in config.matrix.environments for split in config.environment(e).evaluation_splits}
    names |= {"domains"} if {"in_domain", "out_of_domain"} <= splits else set()
    names |= {"training_curves", "bias", "group_levels", "time_breakdown"} if _trained(config) else set()
    return sorted(names)


def _trained(config: Config) -> bool:
    trainable = any(config.models[model].trainable for model in config.matrix.models)
    return trainable and any(config.training_for(environment).iterations for environment in config.matrix.environments)
