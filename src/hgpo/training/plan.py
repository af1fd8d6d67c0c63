"""Everything about a training run that is settled before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgpo.agent import Template, load_template
from hgpo.config import Config, EnvironmentSettings, Model, Run, Training, estimator_identity, obstacle
from hgpo.envs.panels import verified_panel
from hgpo.errors import CheckpointError, ConfigError
from hgpo.rollout.opening import dtype_of
from hgpo.rollout.policy import policy_hash
from hgpo.rollout.records import check_unchanged, read_record
from hgpo.tasks import Panel, hold_out


@dataclass(frozen=True)
class Plan:
    """identity: everything the outcome of the run depends on, as JSON; a checkpoint belongs to one identity."""

    config: Config
    run: Run
    folder: Path
    start: Path
    model: Model
    training: Training
    protocol: EnvironmentSettings
    estimator: str
    options: dict[str, Any]
    training_panel: Panel
    validation_panel: Panel | None
    template: Template
    identity: dict[str, Any]

    @property
    def batch(self) -> int:
        """Episodes of one iteration."""
        return self.training.tasks_per_iteration * self.training.rollouts_per_task


def make_plan(config: Config, run: Run) -> Plan:
    """Reads panel, template and start of a run and checks that its settings go together.

    Raises ConfigError, DataError or CheckpointError naming what is wrong.
    """
    training, protocol = config.training_for(run.environment), config.environment(run.environment)
    model, start = config.models[run.model], run.start_folder(config)
    if training.early_stopping and not (training.validate_every and training.validation_tasks):
        raise ConfigError(
            "training.early_stopping needs validations", "set training.validate_every and training.validation_tasks"
        )
    reason = obstacle(config, run)
    if reason:
        raise ConfigError(*reason)
    panel = verified_panel(config.data_folder(run.environment), run.environment, protocol.train_split)
    training_panel, validation_panel = hold_out(panel, training.validation_tasks)
    if training.early_stopping and validation_panel is None:
        raise ConfigError(
            f"training.early_stopping needs validations, but of the {len(panel)} tasks of {run.environment} none can "
            "be held out (a fifth at most)",
            "prepare five tasks or more, or set training.early_stopping: 0",
        )
    template = load_template(protocol.agent.template)
    if not (start / "config.json").is_file():
        raise CheckpointError(
            f"{run} has no start: there is no checkpoint in {start}",
            f"run `hgpo warm-start --model {run.model} --environment {run.environment} --history {run.history}` first",
        )
    start_hash = policy_hash(start)
    check_unchanged(start, (read_record(start / "checkpoint.json") or {}).get("hash"), start_hash)
    settings = settings_of(config, run)
    estimator = estimator_identity(config, run.method, run.environment, run.history)
    identity = settings | estimator | {"panel_hash": panel.hash, "start_hash": start_hash, "template": template.label}
    return Plan(
        config,
        run,
        run.folder(config),
        start,
        model,
        training,
        protocol,
        settings["estimator"],
        settings["options"],
        training_panel,
        validation_panel,
        template,
        identity,
    )


def settings_of(config: Config, run: Run) -> dict[str, Any]:
    """The part of a run's identity that the configuration decides."""
    training, protocol = config.training_for(run.environment), config.environment(run.environment)
    model = config.models[run.model]
    estimator, options = config.estimator_for(run.method, run.environment, run.history)
    settings: dict[str, Any] = {
        "run": vars(run),
        "estimator": estimator,
        "options": options,
        "training": training.model_dump(mode="json", exclude=training.NEUTRAL),
        "protocol": protocol.model_dump(mode="json", exclude={"training", "warm_start", "evaluation_splits"}),
        "engine": model.engine.kind,
        "learner": {"kind": model.learner.kind, "dtype": dtype_of(model)},
    }
    if model.engine.arguments:
        settings["engine_arguments"] = model.engine.arguments
    if model.learner.kind == "deepspeed":
        settings["learner"]["zero_stage"] = model.learner.zero_stage
    if model.learner.kind == "deepspeed" or model.placement.learner_ranks > 1:
        settings["learner"]["ranks"] = model.placement.learner_ranks
    return settings
