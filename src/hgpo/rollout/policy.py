"""Loading, saving and identifying policies: ordinary Hugging Face checkpoint folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from hgpo.errors import CheckpointError, ConfigError
from hgpo.files import atomic_folder, give_usual_rights, sha256_file, sha256_json
from hgpo.rollout.memory import is_allocation_failure, out_of_memory

WEIGHTS = ("*.safetensors", "*.bin")
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]  # what is taken of a model on the hub


def load_policy(
    folder: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    attention: str = "sdpa",
) -> tuple[Any, Any]:
    """(model in evaluation mode, tokenizer) of a checkpoint folder.

    Switches cuDNN's attention off for the process: it takes a tenth of a second to plan for every new shape, and almost
    every batch has one.
    Raises CheckpointError if the folder is missing, incomplete or corrupt, if weights are missing, if tokenizer and
    model do not fit, or if the tokenizer has no end token; ConfigError if the attention kernel cannot be used.
    """
    tokenizer = load_tokenizer(folder)
    with out_of_memory(f"loading {folder}", lambda: "free memory, or use `dtype: bfloat16` or a smaller model"):
        model = _load_model(folder, dtype, attention).to(device)
    torch.backends.cuda.enable_cudnn_sdp(False)
    return model.eval(), tokenizer


def _load_model(folder: str | Path, dtype: str, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
        )
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # the library raises anything from OSError to SafetensorError
        if isinstance(error, ImportError) or "attn_implementation" in str(error):
            raise ConfigError(
                f"{folder} cannot be loaded with learner.attention: {attention}: {error}",
                "install the package, or set models.<name>.learner.attention: sdpa",
            ) from None
        if is_allocation_failure(error):
            raise
        raise _unloadable(folder, error) from None
    model, found = loaded
    _check_weights(folder, model.base_model_prefix, found)
    return model


def _check_weights(folder: str | Path, decoder: str, found: dict[str, Any]) -> None:
    """Raises CheckpointError if weights of the model were not in its checkpoint: they would be random.

    decoder: the first part of the names of its weights; others that the model does not have, as a value head's, are
    left aside. found: what the library says of the loading; tied weights that are there once are not missing in it.
    """
    wrong = {
        "lacks": sorted(found["missing_keys"]),
        "has weights of another shape than its config.json says": sorted(
            str(key[0]) for key in found["mismatched_keys"]
        ),
        "has weights that its config.json does not know": sorted(
            key for key in found["unexpected_keys"] if key.startswith(f"{decoder}.")
        ),
    }
    for what, keys in wrong.items():
        if keys:
            raise CheckpointError(
                f"checkpoint {folder} {what}: {', '.join(keys[:3])}" + f" and {len(keys) - 3} more" * (len(keys) > 3),
                "restore its files from where they came from, or make the checkpoint again",
            )


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer of a checkpoint folder, without its weights. Raises CheckpointError as `load_policy` does."""
    from transformers import AutoConfig, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not (Path(folder) / "config.json").is_file():
        raise CheckpointError(f"no checkpoint in {folder}: config.json is missing", "train it, or name another folder")
    try:
        vocabulary = AutoConfig.from_pretrained(str(folder)).vocab_size
    except Exception as error:
        raise _unloadable(folder, error) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:
        raise CheckpointError(
            f"checkpoint {folder}: its tokenizer cannot be loaded: {type(error).__name__}: {error}",
            "put the tokenizer's files, tokenizer.json and tokenizer_config.json, of the same model into the folder",
        ) from None
    if len(tokenizer) > vocabulary:
        raise CheckpointError(
            f"checkpoint {folder}: the tokenizer has {len(tokenizer)} tokens, the model only {vocabulary}",
            "use the tokenizer that belongs to the model",
        )
    if not tokenizer.encode("a b", add_special_tokens=False):
        raise CheckpointError(
            f"checkpoint {folder}: its tokenizer makes no token of a text", "is its tokenizer.json in the folder?"
        )
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"checkpoint {folder}: its tokenizer has no end token", "set `eos_token` in it")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _unloadable(folder: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {folder} cannot be loaded: {type(error).__name__}: {error}",
        "delete the folder and make it again, or restore it from where it came from",
    )


def checkpoint_of(name: str, source: str, revision: str | None) -> Path:
    """The folder of the pretrained model called `name`: `source` itself, or its copy in the cache of the hub.

    Raises CheckpointError if a hub model is not in the cache: jobs fetch nothing.
    """
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(source, revision=revision, allow_patterns=HUB_FILES, local_files_only=True)
        return Path(found)
    except Exception as error:  # the hub's own errors, and those of the libraries below it
        raise CheckpointError(
            f"{source} at {revision} is neither a folder nor in the cache: {type(error).__name__}",
            f"run `hgpo fetch-model --model {name}` where there is a network",
        ) from None


def named_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a policy under the names of its Hugging Face checkpoint, each once.

    Adapters are merged into what they adapt; tied weights come once, under their first name. A learner that shards
    its weights gathers them one after the other: it brings its own `named_weights`.
    """
    if not isinstance(model, torch.nn.Module):
        yield from model.named_weights()
        return
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        weight = parameter.detach()
        if name.endswith(".base_layer.weight"):
            layer: Any = model.get_submodule(name.removesuffix(".base_layer.weight"))
            for adapter in layer.active_adapters:
                weight = weight + layer.get_delta_weight(adapter).detach().to(weight.dtype)
        yield name.replace(".base_layer.", "."), weight


@torch.no_grad()
def load_weights(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copies weights as `named_weights` gives them into a model of the same architecture.

    Raises CheckpointError if a name is unknown or one is missing.
    """
    own = dict(model.named_parameters())
    for name, weight in weights:
        if name not in own:
            raise CheckpointError(f"weight update: the model has no weight {name}", "use one architecture throughout")
        own.pop(name).copy_(weight)
    if own:
        raise CheckpointError(f"weight update: {len(own)} weights did not come, first {next(iter(own))}")


def save_policy(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Writes a checkpoint folder as a whole or not at all."""
    with atomic_folder(folder) as temporary:
        write_policy(model, tokenizer, temporary)


def write_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes model and tokenizer into an existing folder, as transformers and vLLM load them."""
    state = {name: weight.cpu().contiguous() for name, weight in named_weights(model)}
    write_state_dict(model, tokenizer, state, folder)


def write_state_dict(model: Any, tokenizer: Any, state: dict[str, torch.Tensor], folder: Path) -> None:
    model.save_pretrained(folder, state_dict=state)
    tokenizer.save_pretrained(folder)
    give_usual_rights(folder)  # the library writes weights for their owner only


def policy_hash(folder: str | Path) -> str:
    """sha256 over configuration, tokenizer and weights of a checkpoint folder."""
    root = Path(folder)
    names = sorted({p for pattern in ("*.json", "*.txt", "*.model", *WEIGHTS) for p in root.glob(pattern)})
    kept = [p for p in names if p.name != "checkpoint.json"]
    if not any(p.match(w) for p in kept for w in WEIGHTS):
        raise CheckpointError(f"no weights in {folder}", "name a Hugging Face checkpoint folder")
    return sha256_json({p.name: sha256_file(p) for p in kept})
