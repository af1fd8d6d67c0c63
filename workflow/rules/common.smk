"""The checked configuration, the runs it plans, and what the rules need to know about them."""

import signal
import sys
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError
from snakemake.jobs import GroupJob
from snakemake.utils import validate
from snakemake_interface_executor_plugins.settings import ExecMode

from hgpo.config.experiment import ENVIRONMENTS, PROMPTED, SCRIPTED, parse_config, read_yaml
from hgpo.config.runs import Run, check_chat, estimator_identity, plan_baselines, plan_left_out, plan_runs
from hgpo.errors import HgpoError
from hgpo.files import sha256_json, write_text

try:
    for file in workflow.configfiles:
        read_yaml(file)  # Snakemake takes the last of a key's values without a word
    CONFIG = parse_config(config, " + ".join(str(file) for file in workflow.configfiles))
    for run in plan_runs(CONFIG):
        check_chat(CONFIG, run.model, run.environment)
except HgpoError as error:
    raise WorkflowError(str(error))

RESOLVED = CONFIG.model_dump(mode="json")
SCHEMA = Path(workflow.basedir) / "workflow/schemas/config.schema.json"
try:
    validate(RESOLVED, SCHEMA, set_default=False)
except WorkflowError:
    raise WorkflowError(f"{SCHEMA} is not the schema of the installed hgpo; renew it: make schema") from None

RESULTS = CONFIG.folder.as_posix()
CONFIG_FILE = f"{RESULTS}/config.yaml"  # what every command reads: written when the workflow starts
CONTAINER = f"{RESULTS}/container.json"
MODEL_RECORD = f"{CONFIG.data.directory}/models/{{model}}.json"
RUNS = plan_runs(CONFIG)
LEFT_OUT = plan_left_out(CONFIG)
if LEFT_OUT and not RUNS:
    raise WorkflowError(f"no run of the matrix can be done as configured: {next(iter(LEFT_OUT.values()))}")
if workflow.exec_mode == ExecMode.DEFAULT:  # said once, not again by every job
    for run, reason in LEFT_OUT.items():
        logger.warning(f"left out of the matrix: {run}: {reason}")

# The early warning before a time limit (USR1) is for the training command: Snakemake itself must survive it.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

def name_the_reason(log_error):
    """Snakemake keeps the reason to itself when several jobs share a Slurm job that cannot be submitted or fails."""

    def wrapped(group, msg=None, **details):
        if msg:
            logger.error(f"Error in group {group.name}: {msg}")
        log_error(group, msg, **details)

    return wrapped


GroupJob.log_error = name_the_reason(GroupJob.log_error)

# Jobs may have no network: the hub is asked by `hgpo fetch-model` only.
BEFORE = "export HF_HUB_OFFLINE=1; "
if "apptainer" not in {str(method) for method in workflow.deployment_settings.deployment_method}:
    BEFORE += f"export PATH='{Path(sys.executable).parent}':\"$PATH\"; "
shell.prefix(BEFORE)
if CONFIG.containers.enabled:

    container: CONFIG.containers.image


MODEL_IMAGE = CONFIG.containers.image if CONFIG.containers.enabled else None
if MODEL_IMAGE and CONFIG.containers.train_image and any(CONFIG.models[name].gpus for name in CONFIG.matrix.models):
    MODEL_IMAGE = CONFIG.containers.train_image


# Small jobs of one group share a Slurm job. Those that take a slot run in it one after the other: the profile's
# `slot=1` makes the Slurm job ask for what one of them needs, not for the sum.
resource_scopes:
    slot="local",


wildcard_constraints:
    model=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    environment="|".join(ENVIRONMENTS),
    method=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    history=r"\d+",
    seed=r"\d+",
    evaluation_seed=r"\d+",
    split=r"[A-Za-z0-9][A-Za-z0-9._-]*",


onstart:
    resolved = yaml.safe_dump(RESOLVED, sort_keys=False, allow_unicode=True)
    if not Path(CONFIG_FILE).exists() or Path(CONFIG_FILE).read_text(encoding="utf-8") != resolved:
        write_text(CONFIG_FILE, resolved)
    if CONFIG.containers.enabled:  # a wrong or missing image stops the workflow here, before any job
        shell(f"hgpo container --config {CONFIG_FILE}")


def of_run(pattern):
    """The path pattern of a file of one run, below the results folder."""
    return f"{RESULTS}/{pattern}"


def settings_of(*sections):
    """Short hash of the settings a job depends on: the job is done again when they change, not when others do."""
    return sha256_json(sections)[:16]


def grown(amount):
    """Memory or time of a rule: twice as much when a job is submitted again, and not more the third time; a failure
    has other reasons, too. amount: a number, or a function of the wildcards."""
    return lambda w, attempt: min(attempt, 2) * (amount(w) if callable(amount) else amount)


def gpus_of(model):
    return CONFIG.models[model].gpus


def nodes_of(model):
    return CONFIG.models[model].placement.nodes


def data_marker(environment):
    return (CONFIG.data_folder(environment) / "prepared.json").as_posix()


def data_settings(environment):
    made_from = getattr(CONFIG.data, environment).model_dump(mode="json")
    return [CONFIG.data.directory, CONFIG.data.panel_seed, made_from]


def environment_settings(environment):
    """The data and the protocol of an environment, as training sees them."""
    aside = {"training", "warm_start", "evaluation_splits"}
    return [data_settings(environment), CONFIG.environment(environment).model_dump(mode="json", exclude=aside)]


RUNNING = {"gpus", "engine", "learner", "placement", "endpoint"}  # how a model is run, not what it learns


def start_settings(model, environment, history):
    """Everything that decides what the starting checkpoint is."""
    chosen = CONFIG.warm_start_for(environment).target_success is not None
    return [
        environment_settings(environment),
        CONFIG.models[model].model_dump(mode="json", exclude=RUNNING),
        CONFIG.warm_start_for(environment).model_dump(mode="json"),
        CONFIG.training_for(environment).validation_tasks,
        CONFIG.evaluation.temperature if chosen else None,
        int(history),
    ]


def run_settings(model, environment, method, history):
    """Everything that decides what a training run learns."""
    training = CONFIG.training_for(environment)
    return [
        start_settings(model, environment, history),
        CONFIG.estimator_for(method, environment, int(history)),
        training.model_dump(mode="json", exclude=training.NEUTRAL),
    ]
