"""The configuration of an experiment: which runs there are, and how each is trained and evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from hgpo import advantages
from hgpo.agent.template import template_names
from hgpo.config.alfworld import AlfworldData
from hgpo.config.base import Settings
from hgpo.config.machinery import Clip, Critic, Endpoint, Engine, Learner, Lora, Placement, Rate, Tracking
from hgpo.config.webshop import WebshopData
from hgpo.errors import ConfigError, HgpoError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
S = TypeVar("S", bound=Settings)
EnvironmentName = Literal["alfworld", "webshop"]
ENVIRONMENTS: tuple[str, ...] = get_args(EnvironmentName)
PANELS = {
    "alfworld": ("train", "valid_seen", "valid_unseen"),
    "webshop": ("train", "eval", "test", "agent_validation", "agent_train"),
}
BaselineName = Literal["random", "expert", "zero_shot", "react", "reflexion"]

SCRIPTED = ("random", "expert")  # baselines without a model
PROMPTED = ("zero_shot", "react", "reflexion")  # baselines of a model as it is, before any training
BASELINES = (*SCRIPTED, *PROMPTED)


def check_differ(key: str, values: list[Any]) -> None:
    """Raises ValueError naming the first of `values` that is there twice: its run would be counted twice."""
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ValueError(f"{key}: {twice[0]!r} is named twice")


class Data(Settings):
    """Where prepared data lie and what they are made from.

    directory: the folder of prepared data, one folder for each environment below it.
    panel_seed: orders the tasks of every panel.
    alfworld, webshop: what the environment's data are made from.
    """

    directory: str = "data"
    panel_seed: Seed = 0
    alfworld: AlfworldData = AlfworldData()
    webshop: WebshopData = WebshopData()


class EmbeddedModel(Settings):
    """A small decoder of the Qwen2 architecture with its own tokenizer, initialised here: needs no download.

    hidden_size, layers, heads, key_value_heads, intermediate_size: its shape, as Qwen2 names it.
    vocabulary: largest number of tokens of the tokenizer, which is trained on the environment's own texts.
    context: longest prompt and reply together, in tokens.
    initializer_range: standard deviation of the initial weights.
    """

    hidden_size: Count = 128
    layers: Count = 4
    heads: Count = 4
    key_value_heads: Count = 2
    intermediate_size: Count = 384
    vocabulary: Annotated[int, Field(ge=300, le=50_000)] = 2048
    context: Count = 1024
    initializer_range: Annotated[float, Field(gt=0)] = 0.08

    @model_validator(mode="after")
    def _heads_divide(self) -> EmbeddedModel:
        if self.hidden_size % self.heads or self.hidden_size // self.heads % 2:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) has to be `heads` ({self.heads}) times an even number"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"`heads` ({self.heads}) has to be a multiple of `key_value_heads` ({self.key_value_heads})"
            )
        return self


class Model(Settings):
    """A policy to start from.

    source: `embedded`, or a folder or hub name of a Hugging Face checkpoint, or `endpoint`.
    revision: the commit of the hub checkpoint; required to make a hub model reproducible.
    embedded: with `source: embedded`, the shape of the model that is made.
    dtype: of the weights; `auto` is bfloat16 on a GPU and on a CPU that computes in it, else float32. Training keeps
        float32 copies in any case.
    gpus: GPUs that one training run of the model takes; 0 trains on the CPU.
    engine, learner, placement: how it is run.
    endpoint: with `source: endpoint`, where the model is reached; such a model is only evaluated, by baselines.
    """

    source: str = "embedded"
    revision: str | None = None
    embedded: EmbeddedModel = EmbeddedModel()
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    gpus: Annotated[int, Field(ge=0)] = 0
    engine: Engine = Engine()
    learner: Learner = Learner()
    placement: Placement = Placement()
    endpoint: Endpoint | None = None

    @property
    def trainable(self) -> bool:
        return self.source != "endpoint"

    @model_validator(mode="after")
    def _endpoint_goes_with_source(self) -> Model:
        if self.trainable and self.endpoint is not None:
            raise ValueError("`endpoint` needs `source: endpoint`")
        if not self.trainable and self.endpoint is None:
            raise ValueError("`source: endpoint` needs `endpoint: {url: ..., model: ...}`")
        return self

    @model_validator(mode="after")
    def _ranks_are_placed(self) -> Model:
        if self.learner.kind == "deepspeed" and self.placement.kind != "ray":
            raise ValueError("`learner.kind: deepspeed` needs `placement.kind: ray`, which starts its processes")
        return self

    @model_validator(mode="after")
    def _gradients_add_up(self) -> Model:
        if self.learner.kind == "deepspeed" and self.learner.zero_stage == 0 and self.dtype != "float32":
            raise ValueError(
                f"`dtype: {self.dtype}` needs `learner.zero_stage: 1` or above: with 0 DeepSpeed adds gradients up in "
                "bfloat16 and loses small ones"
            )
        return self

    @model_validator(mode="after")
    def _sync_goes_with_placement(self) -> Model:
        sync, colocated = self.engine.sync, self.placement.colocated
        if sync == "reload":
            return self
        if self.engine.kind != "vllm" or self.placement.kind != "ray" or not self.gpus:
            raise ValueError(f"`engine.sync: {sync}` needs GPUs, `engine.kind: vllm` and `placement.kind: ray`")
        if (sync == "ipc") != colocated:
            wanted = "`colocated: true`, for one GPU's processes" if sync == "ipc" else "`colocated: false`"
            raise ValueError(f"`engine.sync: {sync}` needs {wanted}")
        if sync == "ipc" and self.learner.kind == "deepspeed" and self.learner.zero_stage == 3:
            raise ValueError("`engine.sync: ipc` needs whole weights on each GPU: not with `learner.zero_stage: 3`")
        return self


class WarmStart(Settings):
    """Supervised fine-tuning on expert episodes of training tasks.

    demonstrations: number of expert episodes; they go round the training tasks in order. 0 turns the warm start off.
    tasks: use only the first so many training tasks (default: all that are not held out for validation).
    noise: share of steps at which a random admissible action is played (and not learnt) instead, from the second
        round on, so that the policy also learns to recover.
    hesitation: share of steps at which the expert does something idle in between (looks round, reads a product's
        description), which is learnt like the rest. Such a start has a fault that no sharper sampling mends: half its
        steps are wasted, on any task. Reinforcement learning can unlearn it.
    prompt_weight: weight of a prompt's token in the loss, that of a reply's being 1. An embedded model, which knows
        no text at all, learns to copy from its prompt that way; for a pretrained model use 0.
    epochs: passes over the demonstrated steps; may be a fraction.
    learning_rate: largest learning rate of AdamW.
    token_budget: largest number of tokens (padding included) in one batch, that is, in one update.
    target_success: keep, of several policies along the fine-tuning, the one whose success on the held-out training
        tasks (`training.validation_tasks`) is nearest to this; without it, the last.
    candidates: with `target_success`, how many policies are tried, at equal distances.
    seed: of the expert's, the noise's and the batches' random draws.
    """

    demonstrations: Annotated[int, Field(ge=0)] = 64
    tasks: Count | None = None
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    hesitation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    prompt_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    epochs: Annotated[float, Field(gt=0)] = 3
    learning_rate: Rate = 1e-3
    token_budget: Count = 8192
    target_success: Annotated[float, Field(gt=0, lt=1)] | None = None
    candidates: Count = 4
    seed: Seed = 0


class Training(Settings):
    """Reinforcement learning.

    tasks_per_iteration, rollouts_per_task: an iteration collects their product in episodes.
    mini_batch_steps: steps per optimizer update, 0 for all steps of the iteration in one update.
    token_budget: largest number of tokens (padding included) in one forward pass.
    iterations: rounds of collecting episodes and learning from them.
    learning_rate, weight_decay: of AdamW.
    warm_up_iterations: iterations in which the learning rate rises linearly to its value.
    epochs: passes over the steps of an iteration.
    clip: the PPO clip range.
    kl_coefficient: weight of the k3 KL loss against the starting policy.
    entropy_coefficient: weight of the entropy bonus.
    max_gradient_norm: longer gradients are clipped to this norm.
    clip_high: upper end of the clip range where it differs from the lower one (`clip-higher` of DAPO).
    dual_clip: a negative advantage gives a token at most so many times its size as loss (dual-clip PPO).
    ratio: of each `token`, or of the whole response, its tokens' geometric mean (`sequence`, GSPO).
    temperature: sampling temperature of the rollouts.
    old_log_probs: of the policy that sampled: `recompute` them in the learner (exact, one more forward pass), or take
        those of the `engine`, which differ by its rounding (`log_prob_gap` is not measured then), or `corrected`:
        recompute them, and weigh each token by learner over engine probability, at most `correction_cap`.
    correction_cap: with `old_log_probs: corrected`, the largest weight of a token.
    lora: low-rank adapters instead of training all weights.
    critic: the value network of `ppo`.
    checkpoint_every, validate_every: iterations between checkpoints and validations (0: none but the last).
    validation_tasks: size of the fixed sub-panel of training-time validation, drawn from the training panel's end
        and held out of training.
    early_stopping: stop after so many validations without a new best (0: never).
    keep_checkpoints: how many of the newest checkpoints are kept.
    episodes_every: iterations between rollouts kept as Parquet (0: none).
    environment_workers: processes that host the environments, and in which the expert plays for the warm start; 0: the
        process itself does.
    """

    # Settings that decide how fast a run is and how much of it is kept, not what it learns but for rounding.
    NEUTRAL: ClassVar[set[str]] = {
        "environment_workers",
        "token_budget",
        "checkpoint_every",
        "keep_checkpoints",
        "episodes_every",
    }

    iterations: Annotated[int, Field(ge=0)] = 160
    tasks_per_iteration: Annotated[int, Field(ge=1, le=100_000)] = 16
    rollouts_per_task: Annotated[int, Field(ge=2, le=10_000)] = 8
    learning_rate: Rate = 1e-6
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warm_up_iterations: Annotated[int, Field(ge=0)] = 0
    epochs: Count = 1
    mini_batch_steps: Annotated[int, Field(ge=0)] = 256
    token_budget: Count = 16384
    clip: Clip = 0.2
    clip_high: Clip | None = None
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    ratio: Literal["token", "sequence"] = "token"
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.01
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0
    temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    old_log_probs: Literal["recompute", "engine", "corrected"] = "recompute"
    correction_cap: Annotated[float, Field(ge=1)] = 2.0
    lora: Lora = Lora()
    critic: Critic = Critic()
    checkpoint_every: Annotated[int, Field(ge=0)] = 10
    keep_checkpoints: Count = 2
    validate_every: Annotated[int, Field(ge=0)] = 5
    validation_tasks: Annotated[int, Field(ge=0)] = 32
    early_stopping: Annotated[int, Field(ge=0)] = 0
    episodes_every: Annotated[int, Field(ge=0)] = 0
    environment_workers: Annotated[int, Field(ge=0, le=1024)] = 0


class Agent(Settings):
    """What the agent reads and how its reply is understood.

    template: name of the prompt template (`src/hgpo/agent/templates`), or the path of a .txt file.
    memory: `window` shows the last K observation-action pairs, `summary` a summary of older ones as well.
    parser: `upstream` checks the form of the reply only; `admissible` also that the action can be done here.
    chat: whether prompts go through the tokenizer's chat template.
    max_prompt_tokens: longer prompts are shortened.
    max_response_tokens: longest reply.
    fallback_characters: a reply without an action part is taken for an action with so many of its last characters.
    """

    template: str
    memory: Literal["window", "summary"] = "window"
    parser: Literal["upstream", "admissible"] = "upstream"
    chat: bool = True
    max_prompt_tokens: Count = 4096
    max_response_tokens: Count = 512
    fallback_characters: Annotated[int, Field(ge=0)] = 30

    @field_validator("template")
    @classmethod
    def _template_is_known(cls, value: str) -> str:
        if not value.endswith(".txt") and value not in template_names():
            raise ValueError(f"no template {value!r}; there are {', '.join(template_names())}, or give a .txt file")
        return value


class EnvironmentSettings(Settings):
    """The protocol of one environment.

    max_steps: an episode ends after so many steps.
    agent: what the agent reads and how its reply is understood.
    success_reward: the reward of winning; everything else gives 0.
    invalid_penalty, gamma, normalisation: defaults for every estimator that takes them.
    train_split, evaluation_splits: names of the panels; `evaluation_splits` maps what tables call the split
        (`in_domain`, `out_of_domain`, `test`) to the panel.
    training, warm_start: values of the section of that name that differ in this environment.
    """

    max_steps: Count
    agent: Agent
    success_reward: float = 10.0
    invalid_penalty: Annotated[float, Field(ge=0)] = 0.1
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    normalisation: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    train_split: str = "train"
    evaluation_splits: dict[Name, str]
    training: dict[str, Any] = {}
    warm_start: dict[str, Any] = {}


def _alfworld() -> EnvironmentSettings:
    return EnvironmentSettings(
        max_steps=50,
        agent=Agent(template="alfworld-v1"),
        evaluation_splits={"in_domain": "valid_seen", "out_of_domain": "valid_unseen"},
    )


def _webshop() -> EnvironmentSettings:
    return EnvironmentSettings(
        max_steps=30,
        agent=Agent(template="webshop-v1", fallback_characters=20),
        normalisation="mean_norm",
        evaluation_splits={"test": "test"},
    )


class Environments(Settings):
    """The protocol of each environment; what is not given is the paper's.

    alfworld, webshop: the environment's protocol.
    """

    alfworld: EnvironmentSettings = Field(default_factory=_alfworld)
    webshop: EnvironmentSettings = Field(default_factory=_webshop)

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        defaults = {name: field.get_default(call_default_factory=True) for name, field in cls.model_fields.items()}
        filled = dict(value)
        for name, default in defaults.items():
            given = filled.get(name)
            if isinstance(given, dict):
                base = default.model_dump()
                agent = given.get("agent")
                merged = base | given
                if isinstance(agent, dict):
                    merged["agent"] = base["agent"] | agent
                filled[name] = merged
        return filled


class Method(Settings):
    """A named variant of an estimator, e.g. `hgpo_alpha0: {estimator: hgpo, options: {alpha: 0}}`.

    estimator: its name, one of `hgpo advantages --help`.
    options: the estimator's options that differ from the environment's and its own defaults.
    """

    estimator: str
    options: dict[str, Any] = {}


class Matrix(Settings):
    """The runs: every combination of these. A method is an estimator's name or a key of the section `methods`.

    baselines: what is evaluated beside them without training: `random` and `expert` for each model at the first K,
        `zero_shot`, `react` and `reflexion` for each model and K.
    models: keys of the section `models`.
    environments: the environments' names.
    methods: estimators, or keys of the section `methods`.
    history: values of K, the steps of history in the prompt.
    training_seeds: one run for each.
    """

    models: Annotated[list[Name], Field(min_length=1)]
    environments: Annotated[list[EnvironmentName], Field(min_length=1)] = ["alfworld", "webshop"]
    methods: Annotated[list[Name], Field(min_length=1)] = ["hgpo", "gigpo", "grpo"]
    history: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [2, 4]
    training_seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    baselines: list[BaselineName] = []

    @model_validator(mode="after")
    def _values_differ(self) -> Matrix:
        for key in type(self).model_fields:
            check_differ(key, getattr(self, key))
        return self


class Evaluation(Settings):
    """Evaluation: every task of a panel once per seed, sampled at `temperature`.

    seeds: each plays the whole panel once.
    temperature: of sampling; 0 takes the likeliest token.
    batch_size: tasks played side by side.
    limit: only the first tasks of each panel.
    reflexion_trials: how often the baseline `reflexion` may try a task at most.
    """

    seeds: Annotated[list[Seed], Field(min_length=1)] = [123, 456, 789]
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.4
    batch_size: Count = 64
    limit: Annotated[int, Field(ge=1)] | None = None
    reflexion_trials: Annotated[int, Field(ge=1, le=20)] = 3

    @model_validator(mode="after")
    def _seeds_differ(self) -> Evaluation:
        check_differ("seeds", self.seeds)
        return self


class Containers(Settings):
    """Whether the rules run in Apptainer images, and which (`snakemake --sdm apptainer`).

    enabled: whether the images are used.
    image, definition: the image of every rule, and what it is built from.
    train_image, train_definition: another image for the rules that run a model of one or more GPUs.
    """

    enabled: bool = False
    image: str = "containers/env.sif"
    definition: str = "containers/env.def"
    train_image: str | None = None
    train_definition: str = "containers/train.def"


class Dvc(Settings):
    """Whether data, checkpoints and episodes are pinned with DVC when an experiment is finished (`hgpo pin`).

    enabled: whether the workflow ends with pinning.
    folder: where the pinned copies and their `.dvc` files lie; git must not ignore it.
    remote: where `hgpo pin add` pushes to: a folder or a URL that DVC knows. Without it nothing is pushed.
    """

    enabled: bool = False
    folder: str = "pins"
    remote: str | None = None


class Config(Settings):
    """An experiment.

    name, results: the results lie in `<results>/<name>`.
    data: where data come from and where they lie when prepared.
    containers, dvc: images and pins, both off by default.
    environments: the protocol of each environment.
    models: the models by name; results carry the name.
    methods: variants of estimators by name.
    matrix: which runs there are.
    warm_start: fine-tuning on expert episodes before reinforcement learning.
    training: reinforcement learning.
    evaluation: seeds and sampling of the evaluation.
    tracking: where metrics go besides metrics.jsonl.
    """

    name: Name
    results: str = "results"
    data: Data = Data()
    containers: Containers = Containers()
    dvc: Dvc = Dvc()
    environments: Environments = Field(default_factory=Environments)
    models: Annotated[dict[Name, Model], Field(min_length=1)]
    methods: dict[Name, Method] = {}
    matrix: Matrix
    warm_start: WarmStart = WarmStart()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _names_are_known(self) -> Config:
        for name in self.matrix.models:
            if name not in self.models:
                raise ValueError(f"matrix.models: {name!r} is not one of the models {sorted(self.models)}")
            self._baselines_fit(name)
        for name in ("warm_start", *BASELINES):
            if name in self.methods:
                raise ValueError(f"methods: the name {name!r} is taken; tables call something else so")
        for name in self.matrix.methods:
            self.method(name)
        for name in self.matrix.environments:
            self._panels_are_known(name)
            self.training_for(name)
            self.warm_start_for(name)
            for method in self.matrix.methods:
                for history in self.matrix.history:
                    self.estimator_for(method, name, history)
        return self

    def _baselines_fit(self, name: str) -> None:
        """The model `name` of the matrix can do its baselines, and is not in it for nothing."""
        prompted = [baseline for baseline in self.matrix.baselines if baseline in PROMPTED]
        if prompted and self.models[name].source == "embedded":
            raise ValueError(
                f"matrix.baselines: {prompted[0]!r} needs a pretrained model, but the model {name!r} is embedded: "
                "it knows nothing before its warm start (that is evaluated in any case)"
            )
        if not prompted and not self.models[name].trainable:
            raise ValueError(
                f"matrix.models: {name!r} is an endpoint, which cannot be trained: "
                f"name {', '.join(PROMPTED[:-1])} or {PROMPTED[-1]} in matrix.baselines"
            )

    def _panels_are_known(self, environment: str) -> None:
        protocol, panels = self.environment(environment), PANELS[environment]
        named = {f"evaluation_splits.{split}": panel for split, panel in protocol.evaluation_splits.items()}
        for key, panel in ({"train_split": protocol.train_split} | named).items():
            if panel not in panels:
                where = f"environments.{environment}.{key}"
                raise ValueError(f"{where}: there is no panel {panel!r}; there are {', '.join(panels)}")

    def method(self, name: str) -> Method:
        """The variant called `name`, or the estimator of that name with its defaults."""
        method = self.methods.get(name) or Method(estimator=name)
        if method.estimator not in advantages.methods():
            where = f"methods.{name}.estimator" if name in self.methods else "matrix.methods"
            raise ValueError(
                f"{where}: unknown method {method.estimator!r}; known are {', '.join(advantages.methods())}"
                + (f", and the variants {', '.join(sorted(self.methods))}" if self.methods else "")
            )
        return method

    def estimator_for(self, method: str, environment: str, history: int) -> tuple[str, dict[str, Any]]:
        """The estimator of a run and all its options: the environment's defaults, K, then the variant's own."""
        variant, protocol = self.method(method), self.environment(environment)
        defaults = {
            "history": history,
            "gamma": protocol.gamma,
            "invalid_penalty": protocol.invalid_penalty,
            "normalisation": protocol.normalisation,
        }
        accepted = advantages.option_names(variant.estimator)
        options = {key: value for key, value in defaults.items() if key in accepted} | variant.options
        try:
            advantages.check_options(variant.estimator, options)
        except HgpoError as error:
            raise ValueError(f"methods.{method}.options: {error.message}") from None
        return variant.estimator, options

    def environment(self, name: str) -> EnvironmentSettings:
        return getattr(self.environments, name)

    def training_for(self, environment: str) -> Training:
        """The section `training` with the environment's own values put in."""
        return _overridden(Training, self.training, self.environment(environment).training, environment, "training")

    def warm_start_for(self, environment: str) -> WarmStart:
        """The section `warm_start` with the environment's own values put in."""
        own = self.environment(environment).warm_start
        return _overridden(WarmStart, self.warm_start, own, environment, "warm_start")

    @property
    def folder(self) -> Path:
        return Path(self.results) / self.name

    def data_folder(self, environment: str) -> Path:
        return Path(self.data.directory) / environment


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key that is there twice is an error: one of its values would be lost without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value)
        return node


def load_config(path: str | Path) -> Config:
    """Reads and checks a configuration file.

    Raises ConfigError naming the file, each wrong key, its value and what is allowed there.
    """
    return parse_config(read_yaml(path), str(path))


def read_yaml(path: str | Path) -> Any:
    """The content of a configuration file. Raises ConfigError if it is missing, no YAML, or has a key twice."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"no configuration at {path}", "name an existing file, e.g. config/demo.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None


def parse_config(body: Any, source: str = "configuration") -> Config:
    """Checks the content of a configuration; `source` names it in the messages."""
    if not isinstance(body, dict):
        raise ConfigError(f"{source}: expected keys and values, found {type(body).__name__}")
    try:
        return Config.model_validate(body)
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(lines), "see docs/configuration.md for every key") from None


def _overridden(kind: type[S], base: S, own: dict[str, Any], environment: str, section: str) -> S:
    try:
        return kind.model_validate(base.model_dump() | own)
    except ValidationError as error:
        where = f"environments.{environment}.{section}"
        raise ValueError("; ".join(f"{where}.{_explain(item, kind)}" for item in error.errors())) from None


def _explain(item: Any, root: type[BaseModel] = Config) -> str:
    """One pydantic error as: key: what is wrong (value), what is allowed."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        allowed = _keys_at(root, item["loc"][:-1])
        return f"unknown key {key!r}" + (f"; allowed here: {', '.join(allowed)}" if allowed else "")
    if item["type"] == "missing":
        return f"missing key {key!r}"
    if item["type"] == "value_error":
        message = str(item["ctx"]["error"])
        return f"{key}: {message}" if key else message
    return f"{key}: {item['input']!r} is not allowed: {item['msg'].removeprefix('Input ')}"


def _keys_at(model: Any, location: tuple[Any, ...]) -> list[str]:
    """The keys that the settings class at `location` accepts; empty if there is none."""
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[part].annotation if part in model.model_fields else None
        else:
            model = next((a for a in reversed(get_args(model)) if _is_settings(a)), None)
    if not _is_settings(model):
        model = next((a for a in get_args(model) if _is_settings(a)), None)
    return sorted(model.model_fields) if model is not None else []


def _is_settings(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
