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
from hgpo.config.runs import (
    Run,
    check_model,
    check_run,
    estimator_identity,
    obstacle,
    plan_baselines,
    plan_left_out,
    plan_runs,
)

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
    "check_model",
    "check_run",
    "estimator_identity",
    "load_config",
    "obstacle",
    "plan_baselines",
    "plan_left_out",
    "plan_runs",
]
