"""What an evaluation evaluates, what of it is recorded, and the function that plays tasks with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hgpo.agent import Template, load_template
from hgpo.config import BASELINES, PROMPTED, SCRIPTED, Config, EnvironmentSettings, Model, Run
from hgpo.envs import environment_factory, open_environment
from hgpo.envs.base import Environment
from hgpo.envs.pool import Pool
from hgpo.errors import CheckpointError, ConfigError
from hgpo.evaluation.baselines import Reflexion, action_alone, make_script, play_script, script_hash, thought_and_action
from hgpo.files import sha256_json
from hgpo.rollout.collector import Collector, Job
from hgpo.rollout.episode import Episode
from hgpo.rollout.records import check_unchanged, read_record, unreadable
from hgpo.tasks import Task

Play = Callable[[Sequence[Task]], list[Episode]]
REFLECTION_TEMPLATE = "reflection-v1"


@dataclass(frozen=True)
class Player:
    """A policy and how it is prompted.

    checkpoint: folder of a model at hand; None for a script or an endpoint. facts: its part of the metadata of an
    evaluation: `checkpoint_hash`, `prompt`, `sampling`, `engine`. template, reflection: None where there is none.
    """

    run: Run
    protocol: EnvironmentSettings
    checkpoint: Path | None
    template: Template | None
    reflection: Template | None
    facts: dict[str, Any]


def make_player(config: Config, run: Run, checkpoint: Path | None) -> Player:
    """The player of a run. checkpoint: None is the model of the configuration as it is, for a baseline.

    Raises ConfigError for an unknown model, or a checkpoint that is missing or not wanted; CheckpointError for one
    that is not there, has no weights, is of another run, or was changed since it was made.
    """
    if run.model not in config.models:
        raise ConfigError(f"--model: unknown model {run.model!r}; known are {', '.join(sorted(config.models))}")
    model, protocol = config.models[run.model], config.environment(run.environment)
    if run.method in SCRIPTED:
        _refuse_checkpoint(checkpoint, f"the baseline {run.method} plays by rule")
        facts = {
            "checkpoint_hash": script_hash(run.method),
            "prompt": {"template": "none", "version": 0, "hash": ""},
            "sampling": {"max_steps": protocol.max_steps},
            "engine": "script",
        }
        return Player(run, protocol, None, None, None, facts)
    template = load_template(protocol.agent.template)
    reflection = None
    if run.method in ("react", "reflexion"):
        template = load_template(f"{run.environment}-react-v1")
        agent = protocol.agent.model_copy(update={"memory": "window"})
        protocol = protocol.model_copy(update={"agent": agent})
    if run.method == "reflexion":
        reflection = load_template(REFLECTION_TEMPLATE)
    if model.endpoint:
        _refuse_checkpoint(checkpoint, f"the model {run.model} is an endpoint")
        if run.method not in PROMPTED:
            raise ConfigError(f"the endpoint {run.model} can only be evaluated as {', '.join(PROMPTED)}")
    else:
        checkpoint = _base_checkpoint(run.model, model) if checkpoint is None and run.method in PROMPTED else checkpoint
        if checkpoint is None:
            raise ConfigError(
                f"no checkpoint to evaluate as {run.method}",
                f"name its folder; only the baselines {', '.join(BASELINES)} go without",
            )
        checkpoint = checkpoint.resolve()  # its records lie beside it, whatever it is called here
        _check_belongs(checkpoint, run)
    made: dict[str, Any] = _facts(config, run, protocol, checkpoint, template, reflection)
    if checkpoint is not None:
        _check_unchanged(checkpoint, made["checkpoint_hash"])
    return Player(run, protocol, checkpoint, template, reflection, made)


@contextmanager
def open_player(config: Config, player: Player) -> Iterator[Callable[[str, int], Play]]:
    """A function of (split, seed) that gives the function which plays tasks: each once, `batch_size` at once.

    Engine and environments are opened once, and closed at the end. Episodes depend on (player, split, seed, task)
    alone; with an endpoint, as far as the server keeps to seeds.
    """
    run, settings = player.run, config.evaluation
    folder = config.data_folder(run.environment)
    if player.template is None:
        environment = open_environment(run.environment, folder)
        try:
            yield partial(_scripted, player, environment)
        finally:
            environment.close()
        return
    engine, tokenizer, patience = _open_engine(config, player)
    workers = config.training_for(run.environment).environment_workers
    try:
        with Pool(environment_factory(run.environment, folder), workers=workers) as pool:

            def prompted(split: str, seed: int) -> Play:
                assert player.template is not None
                collector = Collector(
                    player.protocol,
                    run.history,
                    player.template,
                    tokenizer,
                    engine,
                    pool,
                    seed,
                    engine_timeout_s=patience,
                    remembered=thought_and_action if run.method in ("react", "reflexion") else action_alone,
                )
                keys, at_once = ("evaluation", split), settings.batch_size
                if player.reflection is not None:
                    trials = settings.reflexion_trials
                    reflexion = Reflexion(collector, player.reflection, trials, settings.temperature, keys, at_once)
                    return lambda tasks: list(reflexion.play(tasks))
                return lambda tasks: list(collector.collect(map(Job, tasks), settings.temperature, keys, at_once))

            yield prompted
    finally:
        engine.close()


def _scripted(player: Player, environment: Environment, split: str, seed: int) -> Play:
    run = player.run
    script = make_script(run.method, run.environment, environment, seed, split)
    return lambda tasks: [play_script(script, environment, task, player.protocol) for task in tasks]


def _facts(
    config: Config,
    run: Run,
    protocol: EnvironmentSettings,
    checkpoint: Path | None,
    template: Template,
    reflection: Template | None,
) -> dict[str, Any]:
    model, agent = config.models[run.model], protocol.agent
    prompt: dict[str, Any] = {"template": template.name, "version": template.version, "hash": template.hash}
    sampling: dict[str, Any] = {
        "temperature": config.evaluation.temperature,
        "max_steps": protocol.max_steps,
        "max_response_tokens": agent.max_response_tokens,
        "max_prompt_tokens": agent.max_prompt_tokens,
        "memory": agent.memory,
        "parser": agent.parser,
        "fallback_characters": agent.fallback_characters,
        "chat": agent.chat,
    }
    if reflection is not None:
        prompt["reflection"] = reflection.label
        sampling["trials"] = config.evaluation.reflexion_trials
    if model.endpoint:
        sampling["endpoint"] = model.endpoint.model_dump(mode="json", include={"url", "model", "body"})
        identity = sha256_json(sampling["endpoint"])
        return {"checkpoint_hash": identity, "prompt": prompt, "sampling": sampling, "engine": "endpoint"}
    from hgpo.rollout.policy import policy_hash

    assert checkpoint is not None
    sampling |= {"dtype": model.dtype, "engine_arguments": model.engine.arguments}
    return {
        "checkpoint_hash": policy_hash(checkpoint),
        "prompt": prompt,
        "sampling": sampling,
        "engine": model.engine.kind,
    }


def _open_engine(config: Config, player: Player) -> tuple[Any, Any, float]:
    """(engine, tokenizer, longest time in seconds without a completion)."""
    model, agent, at_once = config.models[player.run.model], player.protocol.agent, config.evaluation.batch_size
    if model.endpoint:
        from hgpo.evaluation.endpoint import EndpointEngine, TextCodec

        codec = TextCodec()
        endpoint = EndpointEngine(model.endpoint, codec)
        return endpoint, codec, endpoint.longest_s
    from hgpo.rollout.opening import open_engine

    assert player.checkpoint is not None
    context = agent.max_prompt_tokens + agent.max_response_tokens
    return *open_engine(model, player.checkpoint, context, at_once), model.engine.timeout_s


def _refuse_checkpoint(checkpoint: Path | None, reason: str) -> None:
    if checkpoint is not None:
        raise ConfigError(f"{reason}: there is no checkpoint to evaluate", f"leave {checkpoint} out")


def _base_checkpoint(name: str, model: Model) -> Path:
    """The folder of a model as it is, before any training; a hub model has to be in the cache."""
    if model.source == "embedded":
        raise ConfigError(
            f"the model {name} is embedded: there is nothing of it before its warm start",
            "name a checkpoint folder, or a model with another source",
        )
    from hgpo.rollout.policy import checkpoint_of

    return checkpoint_of(name, model.source, model.revision)


def _check_belongs(checkpoint: Path, run: Run) -> None:
    """Where training or a warm start left a record with the checkpoint, it has to be of this run."""
    trained, start = _records(checkpoint)
    if trained is not None:
        try:
            stated = Run(**trained["run"])
        except (KeyError, TypeError) as error:
            raise unreadable(checkpoint.parent / "finished.json", error) from None
        if stated != run:
            raise CheckpointError(f"{checkpoint} is the checkpoint of the run {stated}, not of {run}", _RIGHT_ONE)
    elif start is not None:
        try:
            stated_start = tuple(start[key] for key in ("model", "environment", "history"))
        except KeyError as error:
            raise unreadable(checkpoint / "checkpoint.json", error) from None
        if (*stated_start, "warm_start") != (run.model, run.environment, run.history, run.method):
            raise CheckpointError(
                f"{checkpoint} is the warm start of {'/'.join(map(str, stated_start[:2]))} with "
                f"K={stated_start[2]}, not a checkpoint of {run}",
                _RIGHT_ONE,
            )


def _check_unchanged(checkpoint: Path, found: str) -> None:
    """The hash of a checkpoint with a record has to be the one that the record states."""
    trained, start = _records(checkpoint)
    stated = (start or {}).get("hash")
    if trained is not None:
        stated = trained.get("checkpoint_hash") if checkpoint.name == trained.get("checkpoint") else None
    check_unchanged(checkpoint, stated, found)


def _records(checkpoint: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What training and the warm start wrote beside a checkpoint: `finished.json`, `checkpoint.json`; None: nothing."""
    return read_record(checkpoint.parent / "finished.json"), read_record(checkpoint / "checkpoint.json")


_RIGHT_ONE = "name the run's own checkpoint, or evaluate this one as what it is"
