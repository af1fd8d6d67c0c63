"""Checkpoint folders that lack something are refused by name; what is written has the usual rights."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hgpo.config.experiment import EmbeddedModel
from hgpo.errors import CheckpointError, ConfigError, HgpoError
from hgpo.rollout import policy
from hgpo.rollout.policy import load_policy, save_policy
from hgpo.training.embedded import build_model, train_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "whole"
    settings = EmbeddedModel(hidden_size=32, layers=1, heads=2, key_value_heads=1, intermediate_size=32, vocabulary=300)
    tokenizer = train_tokenizer(["a text of few words"], settings.vocabulary)
    save_policy(build_model(settings, tokenizer, 0), tokenizer, folder)
    return folder


@pytest.fixture
def checkpoint(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def change(checkpoint: Path, **weights: torch.Tensor | None) -> None:
    file = checkpoint / "model.safetensors"
    changed = {key: weight for key, weight in (load_file(file) | weights).items() if weight is not None}
    save_file(changed, file, metadata={"format": "pt"})


QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "weight", "said"),
    [
        (QUERY, None, f"lacks: {QUERY}"),
        (QUERY, torch.zeros(3, 3), f"another shape than its config.json says: {QUERY}"),
        ("model.layers.1.mlp.up_proj.weight", torch.zeros(3), "does not know: model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_a_checkpoint_whose_weights_are_not_the_models_is_refused(checkpoint, name, weight, said):
    change(checkpoint, **{name: weight})
    with pytest.raises(CheckpointError, match=said):
        load_policy(checkpoint)


def test_tied_weights_are_there_once_and_a_value_head_is_left_aside(checkpoint):
    change(checkpoint, **{"v_head.weight": torch.zeros(3)})
    model, _ = load_policy(checkpoint)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("attention", ["flash_attention_2", "no_such_kernel"])
def test_an_attention_that_cannot_be_used_is_no_fault_of_the_checkpoint(checkpoint, attention):
    with pytest.raises(ConfigError, match=f"learner.attention: {attention}.*\n.*models.<name>.learner.attention: sdpa"):
        load_policy(checkpoint, attention=attention)


def test_out_of_memory_is_no_fault_of_the_checkpoint(checkpoint, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(policy, "_load_model", full)
    with pytest.raises(HgpoError, match="out of memory in loading .*\n.*free memory"):
        load_policy(checkpoint)


def test_what_is_written_has_the_rights_that_the_umask_gives(made, tmp_path):
    model, tokenizer = load_policy(made)
    before = os.umask(0o027)
    try:
        save_policy(model, tokenizer, tmp_path / "again")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "again").iterdir()} == {"0o640"}
