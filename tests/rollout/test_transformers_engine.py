from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from hgpo.config import Model
from hgpo.errors import CheckpointError, HgpoError
from hgpo.rollout.engines import Request
from hgpo.rollout.opening import dtype_of
from hgpo.rollout.policy import load_policy, save_policy
from hgpo.rollout.transformers_engine import TransformersEngine, sample
from hgpo.training.embedded import train_tokenizer

PROMPT = "goal: open the door at place 2\n"


def engine_of(policy, **options) -> TransformersEngine:
    model, tokenizer = policy
    return TransformersEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id, **options)


def complete(engine, requests):
    for request in requests:
        engine.submit(request)
    completions = []
    while batch := engine.poll():
        completions.extend(batch)
    return {completion.id: completion for completion in completions}


def requests(tokenizer, count, temperature=1.0, length=12):
    texts = [PROMPT * (1 + number % 3) for number in range(count)]
    return [Request(n, tokenizer.encode(t), 1000 + n, length, temperature) for n, t in enumerate(texts)]


def test_greedy_equals_the_librarys_own_generation(policy):
    model, tokenizer = policy
    for request in requests(tokenizer, 3, temperature=0.0):
        ours = complete(engine_of(policy), [request])[request.id].token_ids
        ids = torch.tensor([request.prompt_ids])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert ours == theirs[0, len(request.prompt_ids) :].tolist()


def test_a_completion_depends_on_its_request_alone(policy):
    _, tokenizer = policy
    wanted = requests(tokenizer, 7)
    together = complete(engine_of(policy), wanted)
    in_small_batches = complete(engine_of(policy, max_batch=2), wanted)
    backwards = complete(engine_of(policy), wanted[::-1])
    for request in wanted:
        alone = complete(engine_of(policy), [request])[request.id]
        for other in (together, in_small_batches, backwards):
            assert other[request.id].token_ids == alone.token_ids
            assert other[request.id].log_probs == pytest.approx(alone.log_probs, abs=1e-4)


def test_log_probs_are_those_of_a_plain_forward_pass(policy):
    model, tokenizer = policy
    for temperature in (1.0, 0.4):
        for request in requests(tokenizer, 4, temperature):
            done = complete(engine_of(policy), [request])[request.id]
            ids = torch.tensor([request.prompt_ids + done.token_ids])
            with torch.no_grad():
                logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float() / temperature
            expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0]
            assert done.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_stops_at_the_end_token_and_at_the_limit(policy):
    model, tokenizer = policy
    always_end = copy.deepcopy(model)
    request = Request(0, tokenizer.encode(PROMPT), 5, 6, 1.0)
    free = complete(engine_of(policy), [request])[0]
    assert free.finish in ("stop", "length") and len(free.token_ids) <= 6
    ending = TransformersEngine(always_end, end_token=free.token_ids[0], pad_token=0, version=7)
    stopped = complete(ending, [request])[0]
    assert (stopped.token_ids, stopped.finish, stopped.version) == (free.token_ids[:1], "stop", 7)


def test_a_request_beyond_the_context_is_refused(policy):
    _, tokenizer = policy
    with pytest.raises(CheckpointError, match="do not fit the model's context of 512"):
        engine_of(policy).submit(Request(0, [5] * 500, 0, 100))


def test_updated_weights_are_used_and_versioned(policy):
    model, tokenizer = policy
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape))
    engine = TransformersEngine(copy.deepcopy(model), tokenizer.eos_token_id, tokenizer.pad_token_id)
    wanted = requests(tokenizer, 3, temperature=0.0)
    before = complete(engine, wanted)
    engine.update_weights(other, 1)
    after = complete(engine, wanted)
    expected = complete(TransformersEngine(other, tokenizer.eos_token_id, tokenizer.pad_token_id), wanted)
    assert [c.token_ids for c in after.values()] == [c.token_ids for c in expected.values()]
    assert [c.log_probs for c in after.values()] != [c.log_probs for c in before.values()]
    assert {c.version for c in after.values()} == {1}


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7]])).repeat(20_000, 1)
    uniform = torch.tensor(np.random.Generator(np.random.PCG64(0)).random(20_000))
    tokens, log_probs = sample(logits, torch.ones(20_000), uniform)
    shares = torch.bincount(tokens, minlength=3) / 20_000
    assert shares.tolist() == pytest.approx([0.1, 0.2, 0.7], abs=0.015)
    assert log_probs[:5].exp().tolist() == pytest.approx([[0.1, 0.2, 0.7][t] for t in tokens[:5]], rel=1e-5)


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(CheckpointError, match="not finite"):
        sample(torch.tensor([[0.0, float("nan")]]), torch.ones(1), torch.zeros(1, dtype=torch.float64))


def test_out_of_memory_says_what_to_set(policy, monkeypatch):
    engine = engine_of(policy)
    monkeypatch.setattr(engine, "_generate", lambda batch: torch.empty(1 << 60))
    engine.submit(Request(0, [5], 0, 1))
    with pytest.raises(HgpoError, match="out of memory in the engine") as caught:
        engine.poll()
    assert "agent.max_prompt_tokens" in str(caught.value)


def test_a_tokenizer_of_another_model_is_refused(policy, tmp_path):
    model, _ = policy
    texts = [f"{a}{b} " * 4 for a in "abcdefghijklm" for b in "nopqrstuvwxyz"]
    save_policy(model, train_tokenizer(texts, 800), tmp_path / "mixed")
    with pytest.raises(CheckpointError, match=r"mixed: the tokenizer has \d+ tokens, the model only \d+") as caught:
        load_policy(tmp_path / "mixed")
    assert "use the tokenizer that belongs to the model" in str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "computes", "kind"), [(0, True, "bfloat16"), (0, False, "float32"), (1, False, "bfloat16")]
)
def test_a_model_of_dtype_auto_is_bfloat16_where_that_is_computed(gpus, computes, kind, monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: computes)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert dtype_of(Model(dtype="auto", gpus=gpus)) == kind
    assert dtype_of(Model(dtype="float32", gpus=gpus)) == "float32"
