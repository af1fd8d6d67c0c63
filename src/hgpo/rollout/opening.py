"""An engine over a checkpoint, as a model's settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hgpo.config import Model
from hgpo.errors import ConfigError
from hgpo.rollout.engine_thread import EngineThread
from hgpo.rollout.engines import Engine
from hgpo.rollout.policy import load_policy, load_tokenizer
from hgpo.rollout.transformers_engine import TransformersEngine


def device_of(model: Model) -> str:
    """`cuda` for a model with GPUs, else `cpu`. Raises ConfigError if there is no GPU."""
    if not model.gpus:
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            f"the model's setting gpus is {model.gpus}, but torch finds no GPU",
            "run it where there is one with a torch build for it, or set gpus: 0",
        )
    return "cuda"


def dtype_of(model: Model) -> str:
    """`float32` or `bfloat16`: with `dtype: auto`, bfloat16 on a GPU and on a CPU that computes in it, else float32."""
    if model.dtype != "auto":
        return model.dtype
    computes = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if model.gpus or computes else "float32"


def open_engine(model: Model, checkpoint: str | Path, context: int, at_once: int) -> tuple[Engine, Any]:
    """(engine of kind `model.engine.kind` with the weights of `checkpoint`, tokenizer), in this process.

    context: longest prompt and response together. at_once: largest number of requests worked on at once.
    Raises CheckpointError for a checkpoint that cannot be used, ConfigError for a missing GPU or package.
    """
    if model.engine.kind == "transformers":
        policy, tokenizer = load_policy(checkpoint, dtype_of(model), device=device_of(model))
        return TransformersEngine(policy, tokenizer.eos_token_id, tokenizer.pad_token_id, at_once), tokenizer
    tokenizer = load_tokenizer(checkpoint)
    return open_vllm(model, checkpoint, context, at_once, tokenizer.eos_token_id), tokenizer


def open_vllm(model: Model, checkpoint: str | Path, context: int, at_once: int, end_token: int) -> Engine:
    """vLLM in a thread of this process. Arguments and errors: see `open_engine` and `VllmEngine`."""
    from hgpo.rollout.vllm_engine import VllmEngine

    settings, dtype = model.engine, dtype_of(model)
    return EngineThread(
        lambda: VllmEngine(checkpoint, settings, dtype, context, at_once, end_token), context, settings.timeout_s
    )
