"""The embedded default model: a small Qwen2 decoder and its tokenizer, made here from nothing but text and a seed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from hgpo.config.experiment import EmbeddedModel
from hgpo.streams import derive_seed

PAD, END = "<pad>", "<end>"
MARKS = ["<think>", "</think>", "<action>", "</action>", "' [SEP] '", "]|click[", "click[", "search["]
EXTRA_SHARE = 0.4  # of the vocabulary, at most: words and phrases that are one token each
_WORD = re.compile(r"( ?)([A-Za-z]{2,}|(?<!\d)\d+)")
_UNIT = re.compile(r" ?[A-Za-z]+ \d+| ?[^ ]+")
_CLAUSE_END = re.compile(r"[^\w ]+")


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """A tokenizer of at most `vocabulary` tokens: byte-level BPE as Qwen2's, with some words and phrases whole.

    What a small model has to copy must look the same wherever it stands, in the goal, in what is seen, in what can be
    done and in what is done: words that occur with and without a space before them are tokens without it. Frequent
    phrases (" you see a"), numbers (" 2") and the marks of the environments' text (`MARKS`) keep prompts short.
    Any text can be encoded and decoded without loss. Equal texts give an equal tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = int(EXTRA_SHARE * max(0, vocabulary - len(alphabet)))
    words, numbers = shared_words(texts)
    words = words[:room]
    phrases = (numbers + frequent_phrases(texts))[: room - len(words)]
    extra = [AddedToken(text, normalized=False) for text in MARKS + phrases]
    extra += [AddedToken(text, normalized=False, single_word=True) for text in words]
    bpe = Tokenizer(models.BPE())
    qwen: Any = Qwen2Tokenizer()
    bpe.pre_tokenizer = qwen._tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(extra) - 2, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    model = json.loads(bpe.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]  # the library takes pairs; its annotation says strings
    tokenizer = Qwen2Tokenizer(vocab=model["vocab"], merges=merges, unk_token=PAD, eos_token=END, pad_token=PAD)
    tokenizer.add_tokens(extra)
    return tokenizer


def shared_words(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words and numbers that occur three times or more both with and without a space before them, the other numbers
    with the space before them), each the most frequent first."""
    spaced: Counter[str] = Counter()
    bare: Counter[str] = Counter()
    for text in texts:
        for space, word in _WORD.findall(text):
            (spaced if space else bare)[word] += 1
    shared = {word: spaced[word] + bare[word] for word in spaced if min(spaced[word], bare[word]) > 2}
    numbers = {f" {word}": n for word, n in spaced.items() if word.isdigit() and word not in shared and n > 2}
    return by_frequency(shared), by_frequency(numbers)


def frequent_phrases(texts: Sequence[str]) -> list[str]:
    """Two or three words that occur in one of twenty texts, with the space before them, the most frequent first.

    Never across punctuation, and never with a numbered object in them.
    """
    found: Counter[str] = Counter()
    for text in texts:
        seen: set[str] = set()
        for clause in _CLAUSE_END.split(text):
            units = _UNIT.findall(clause)
            for length in (2, 3):
                for start in range(len(units) - length + 1):
                    words = units[start : start + length]
                    if not any(word[-1].isdigit() for word in words):
                        seen.add("".join(words))
        found.update(seen)
    return by_frequency({text: n for text, n in found.items() if n > len(texts) / 20})


def by_frequency(counts: dict[str, int]) -> list[str]:
    return sorted(counts, key=lambda text: (-counts[text], text))


def build_model(settings: EmbeddedModel, tokenizer: Any, seed: int) -> Any:
    """A Qwen2 decoder with random weights of the stream (seed, "initialisation")."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=settings.initializer_range,
        attention_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialisation"))
        return Qwen2ForCausalLM(config)
