"""The configuration: one typed description, used by the command line, the JSON schema and the workflow."""

from hgpo.config.experiment import (
    ENVIRONMENTS,
    PROMPTED,
    SCRIPTED,
    Config,
    EnvironmentSettings,
    Evaluation,
    Matrix,
    Method,
    Model,
    Training,
    WarmStart,
    load_config,
)
from hgpo.config.runs import Run, obstacle, plan_baselines, plan_left_out, plan_runs

__all__ = [
    "ENVIRONMENTS",
    "PROMPTED",
    "SCRIPTED",
    "Config",
    "EnvironmentSettings",
    "Evaluation",
    "Matrix",
    "Method",
    "Model",
    "Run",
    "Training",
    "WarmStart",
    "load_config",
    "obstacle",
    "plan_baselines",
    "plan_left_out",
    "plan_runs",
]
