"""How a model is run: the generation engine, the learner, and where both are placed. None of it is the protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from hgpo.config.base import Settings

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=1e-12, le=1)]
Clip = Annotated[float, Field(ge=1e-6, le=1000)]
Share = Annotated[float, Field(gt=0, le=1)]


class Engine(Settings):
    """What generates the rollouts' completions.

    kind: `transformers` generates in the training process with the learner's own weights; `vllm` needs vLLM.
    replicas, tensor_parallel: with `placement.kind: ray`, how many engines there are and how many GPUs each takes.
        Colocated and with `cache_gb`, several can share a GPU; one alone makes more tokens.
    gpu_memory: share of a GPU's memory that a vLLM engine takes for weights and cache together; so much of it has to be
        free when the engine starts.
    cache_gb: GiB of memory for vLLM's cache of keys and values. On a CPU it is 1 by default; on a GPU what `gpu_memory`
        leaves. With a number several runs can share a GPU: what each takes does not depend on the others.
    eager: run vLLM without CUDA graphs: starts faster, decodes slower.
    sleep: give a vLLM engine's GPU memory back while the learner works on the same GPU.
    sync: how weights reach vLLM replicas that are Ray actors: `reload` through shared host memory; `ipc` from the
        learner rank on the same GPU (colocated, not with ZeRO stage 3); `nccl` as a broadcast (not colocated).
    arguments: further arguments of vLLM's `EngineArgs`, e.g. `{compilation_config: {mode: 0}}` for an early start.
    timeout_s: longest time without any completion while some are wanted, or for taking new weights; then the run stops
        with a message.
    stale: completions by weights of another version than wanted are an `error`, or kept and counted (`count`).
    gap_alarm: after each weight update the engine's log-probabilities of a few completions are compared with the
        learner's; a mean absolute difference above this is an error, as it means that the update did not arrive.
    """

    kind: Literal["transformers", "vllm"] = "transformers"
    replicas: Count = 1
    tensor_parallel: Count = 1
    gpu_memory: Share = 0.5
    cache_gb: Count | None = None
    eager: bool = False
    sleep: bool = True
    sync: Literal["reload", "ipc", "nccl"] = "reload"
    arguments: dict[str, Any] = {}
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    stale: Literal["error", "count"] = "error"
    gap_alarm: Annotated[float, Field(gt=0)] = 0.1


class Endpoint(Settings):
    """A model behind an OpenAI-compatible chat API: it can be evaluated, not trained.

    url: base of the API, e.g. `https://api.openai.com/v1`; requests go to `<url>/chat/completions`.
    model: its name there.
    key_variable: environment variable that holds the key; null sends none.
    body: further values of every request; a null leaves out what is sent otherwise, e.g. `{temperature: null}`.
    concurrency: largest number of requests under way.
    timeout_s: longest time for one answer, in seconds.
    attempts, backoff_s, longest_wait_s: a request that fails for a passing reason (no connection, time-out, status 408,
        409, 425, 429 or 5xx) is tried so often in all, after `backoff_s` seconds, then twice that, ...; at most
        `longest_wait_s`. A `Retry-After` of the server is kept to, up to that bound.
    """

    url: str
    model: Annotated[str, Field(min_length=1)]
    key_variable: str | None = "OPENAI_API_KEY"
    body: dict[str, Any] = {}
    concurrency: Count = 8
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    attempts: Annotated[int, Field(ge=1, le=20)] = 6
    backoff_s: Annotated[float, Field(ge=0)] = 1.0
    longest_wait_s: Annotated[float, Field(ge=0)] = 60.0

    @field_validator("url")
    @classmethod
    def _url_is_plain(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it has to begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("it may hold no user, password or query: it is stored; give the key by `key_variable`")
        return value.rstrip("/")

    @field_validator("key_variable")
    @classmethod
    def _variable_is_no_key(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isidentifier()):  # perhaps a key: never shown
            raise ValueError("it is the name of an environment variable, which holds the key")
        return value

    @field_validator("body")
    @classmethod
    def _body_is_free(cls, value: dict[str, Any]) -> dict[str, Any]:
        own = sorted({"model", "messages", "seed", "stream", "n"} & set(value))
        if own:
            raise ValueError(f"{own[0]!r} is set by the evaluation")
        return value


class Learner(Settings):
    """What computes log-probabilities and takes optimizer steps.

    kind: of the `placement.learner_ranks` processes each holds everything (`torch`), or its part (`deepspeed`).
    zero_stage: what DeepSpeed shards over the ranks: 0 nothing (float32 weights only), 1 optimizer state, 2 gradients
        too, 3 weights too.
    offload_optimizer, offload_weights: keep these in host memory (`offload_weights` needs stage 3).
    gradient_checkpointing: compute activations again in the backward pass: less memory, about a fifth slower.
    compile: compile each kind of decoder layer, and what is computed from logits, with torch.compile (needs a C++
        compiler): the first iteration takes a minute or two longer, the later ones less. In the warm start the layers
        only. Not with stage 3.
    attention: the attention kernel, as transformers names it.
    """

    kind: Literal["torch", "deepspeed"] = "torch"
    zero_stage: Literal[0, 1, 2, 3] = 2
    offload_optimizer: bool = False
    offload_weights: bool = False
    gradient_checkpointing: bool = False
    compile: bool = False
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"

    @model_validator(mode="after")
    def _offload_goes_with_stage(self) -> Learner:
        if self.offload_weights and self.zero_stage != 3:
            raise ValueError("`offload_weights` needs `zero_stage: 3`")
        if (self.offload_optimizer or self.offload_weights) and self.kind != "deepspeed":
            raise ValueError("offloading needs `kind: deepspeed`")
        if self.compile and self.kind == "deepspeed" and self.zero_stage == 3:
            raise ValueError("`compile` does not go with `zero_stage: 3`, which gathers weights layer by layer")
        return self


class Placement(Settings):
    """Where engine and learner run.

    kind: `local` is this process; `ray` starts learner ranks and engine replicas as Ray actors.
    nodes: number of machines; under Slurm the job must have been given as many.
    learner_ranks: number of learner processes, each with one GPU (or one CPU core for a model without GPUs).
    colocated: engine replicas share the learner's GPUs (they sleep while it learns) instead of having their own.
    overlap: with `ray`, log-probabilities of steps are computed while others are still being played.
    mps: with `ray`, engines and learner ranks that share a GPU run on it at the same time instead of by turns, engines
        first, through NVIDIA's multi-process service, which the run starts on its nodes and ends.
    """

    kind: Literal["local", "ray"] = "local"
    nodes: Count = 1
    learner_ranks: Count = 1
    colocated: bool = True
    overlap: bool = False
    mps: bool = False

    @model_validator(mode="after")
    def _local_is_one(self) -> Placement:
        if self.kind == "local" and (self.nodes > 1 or self.learner_ranks > 1):
            raise ValueError("several nodes or learner ranks need `kind: ray`")
        if self.kind == "local" and self.overlap:
            raise ValueError("`overlap` needs `kind: ray`: in one process engine and learner take turns")
        if self.mps and (self.kind == "local" or not self.colocated):
            raise ValueError("`mps` needs `kind: ray` and `colocated: true`: else no processes share a GPU")
        return self


class Lora(Settings):
    """Low-rank adapters (peft) instead of training all weights.

    rank: of the adapters; 0 trains all weights.
    alpha: scale of the adapters: they are multiplied by alpha / rank.
    targets: names of the modules that get one.
    """

    rank: Annotated[int, Field(ge=0)] = 0
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: list[str] | Literal["all-linear"] = "all-linear"


class Critic(Settings):
    """The value network of the method `ppo`: the starting policy with a value head.

    learning_rate: of its AdamW.
    epochs: passes over the iteration's steps.
    clip: range within which a value may move in one iteration; without it, any.
    warm_up_iterations: iterations in which only the critic learns.
    """

    learning_rate: Rate = 1e-5
    epochs: Count = 1
    clip: Annotated[float, Field(gt=0)] | None = None
    warm_up_iterations: Annotated[int, Field(ge=0)] = 0


class Tracking(Settings):
    """Where metrics go besides metrics.jsonl.

    tensorboard: write event files into the run's folder.
    wandb: `online` takes its key from the environment or the login file.
    wandb_project: the project's name there.
    """

    tensorboard: bool = True
    wandb: Literal["off", "offline", "online"] = "off"
    wandb_project: str = "hgpo"
