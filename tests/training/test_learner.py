from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch._dynamo.utils import counters

from hgpo.config import Training
from hgpo.config.machinery import Learner as Settings
from hgpo.errors import HgpoError
from hgpo.training.batches import PADDING, Row, make_batch, micro_batches, padding_share
from hgpo.training.learner import Learner, Sample
from hgpo.training.loss import clipped_policy_loss, k3, response_log_probs


def rows(count: int = 9) -> list[Row]:
    random = np.random.default_rng(0)
    return [
        Row(random.integers(0, 300, 5 + 3 * (n % 4)).tolist(), random.integers(0, 300, 1 + n % 3).tolist())
        for n in range(count)
    ]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), max_size=40), st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget):
    made = [Row([1] * prompt, [2] * response) for prompt, response in lengths]
    batches = micro_batches(made, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(made)))
    for batch in batches:
        assert len(batch) == 1 or max(len(made[i]) for i in batch) * len(batch) <= budget


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=60),
    st.integers(1, 300),
    st.integers(1, 4),
)
def test_even_micro_batches_are_even_and_no_more_than_needed(lengths, budget, ranks):
    made = [Row([1] * prompt, [2] * response) for prompt, response in lengths]
    batches = micro_batches(made, budget, 1.0, ranks, even=True)
    assert sorted(index for batch in batches for index in batch) == list(range(len(made)))
    padded = [max(len(made[i]) for i in batch) * len(batch) for batch in batches]
    assert all(size <= budget or len(batch) == 1 for size, batch in zip(padded, batches, strict=True))
    needed = len(micro_batches(made, budget, 1.0))
    assert len(batches) <= -(-needed // ranks) * ranks
    smaller = micro_batches(made, max(padded) - 1, 1.0)
    assert len(smaller) > -(-needed // ranks) * ranks or max(padded) == max(map(len, made))


@pytest.mark.parametrize("ranks", [1, 2])
def test_even_micro_batches_of_a_usual_mini_batch_are_of_one_size(ranks):
    random = np.random.default_rng(0)
    made = [Row([1] * int(n), [2] * 128) for n in random.normal(574, 90, 256).clip(300, 1000)]
    batches = micro_batches(made, 9024, PADDING, ranks, even=True)
    sizes = [sum(len(made[i]) for i in batch) for batch in batches]
    assert len(batches) % ranks == 0 and min(sizes) > 0.75 * max(sizes)
    assert padding_share(made, batches) < PADDING


def test_log_probs_are_those_of_single_unpadded_rows(policy):
    model, _ = policy
    learner = Learner(copy.deepcopy(model), Training(token_budget=40, temperature=0.7), pad=0)
    for row, values in zip(rows(), learner.log_probs(rows()), strict=True):
        ids = torch.tensor([row.prompt_ids + row.response_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1].float() / 0.7
        expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(row.response_ids)[:, None])[:, 0]
        assert values == pytest.approx(expected.numpy(), abs=1e-4)


def samples(learner: Learner) -> list[Sample]:
    old = learner.log_probs(rows())
    return [Sample(row, float(n % 3 - 1), o, o - 0.1) for n, (row, o) in enumerate(zip(rows(), old, strict=True))]


def updated(policy, budget: int, **settings) -> torch.Tensor:
    model = copy.deepcopy(policy[0])
    learner = Learner(model, Training(token_budget=budget, learning_rate=1e-3, **settings), pad=0)
    learner.update(samples(learner), seed=0, iteration=0)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_an_update_does_not_depend_on_how_the_mini_batch_is_cut(policy):
    whole, cut = updated(policy, 10_000), updated(policy, 20)
    start = torch.cat([p.detach().flatten() for p in policy[0].parameters()])
    # AdamW's first step moves every weight by the learning rate in its gradient's direction
    assert (whole - start).abs().max() > 5e-4
    assert (whole - cut).abs().mean() < 1e-5


def test_the_gradient_is_the_token_mean_of_the_written_out_loss(policy):
    model = copy.deepcopy(policy[0])
    learner = Learner(model, Training(token_budget=25, max_gradient_norm=1e9), pad=0)
    given_samples = samples(learner)
    learner.update(given_samples, 0, 0)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])

    plain = copy.deepcopy(policy[0])
    total, tokens = 0.0, 0
    for sample in given_samples:
        ids = torch.tensor([sample.row.prompt_ids + sample.row.response_ids])
        logits = plain(ids).logits[0, len(sample.row.prompt_ids) - 1 : -1].float()
        log_probs = torch.log_softmax(logits, -1).gather(-1, torch.tensor(sample.row.response_ids)[:, None])[:, 0]
        ratio = torch.exp(log_probs - torch.tensor(sample.old_log_probs))
        surrogate = torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1.2) * sample.advantage)
        difference = torch.tensor(sample.reference_log_probs) - log_probs
        total = total + (-surrogate + 0.01 * (difference.exp() - difference - 1)).sum()
        tokens += len(sample.row.response_ids)
    (total / tokens).backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    assert torch.allclose(gradient, expected, atol=1e-6, rtol=1e-3)


def test_mini_batches_are_a_function_of_seed_and_iteration(policy):
    one, same = updated(policy, 100, mini_batch_steps=2), updated(policy, 100, mini_batch_steps=2)
    assert torch.equal(one, same)


def test_the_policy_moves_towards_good_steps(policy):
    model = copy.deepcopy(policy[0])
    learner = Learner(model, Training(token_budget=100, learning_rate=1e-3, kl_coefficient=0.0), pad=0)
    before = learner.log_probs(rows())
    signs = [1.0 if n % 2 else -1.0 for n in range(len(before))]
    batch = [Sample(r, s, o, o) for r, s, o in zip(rows(), signs, before, strict=True)]
    for iteration in range(5):
        learner.update(batch, 0, iteration)
    after = learner.log_probs(rows())
    moved = [float(a.sum() - b.sum()) * s for a, b, s in zip(after, before, signs, strict=True)]
    assert np.mean(moved) > 0.1


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(policy):
    model = copy.deepcopy(policy[0])
    learner = Learner(model, Training(), pad=0)
    bad = [Sample(rows()[0], float("nan"), np.zeros(1, np.float32), np.zeros(1, np.float32))]
    with pytest.raises(HgpoError, match="not finite"):
        learner.update(bad, 0, 0)
    for left, right in zip(model.parameters(), policy[0].parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_clip_acts_on_the_side_that_would_go_too_far():
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5]))
    loss, clipped = clipped_policy_loss(new, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2)
    assert loss.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8])
    assert clipped.tolist() == [True, False, False, True]


def test_k3_is_zero_at_equality_and_positive_elsewhere():
    assert k3(torch.tensor([0.3]), torch.tensor([0.3])).item() == 0
    assert k3(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0])).min() > 0


def test_entropy_is_that_of_the_tempered_distribution(policy):
    model, _ = policy
    _, entropy = response_log_probs(model, make_batch(rows()[:1], 0, model.device), 1e6)
    assert entropy.tolist() == pytest.approx([np.log(model.config.vocab_size)] * len(entropy), abs=1e-3)


def test_compiled_layers_and_scores_learn_what_plain_ones_learn(policy):
    assert 1 in {len(batch) for batch in micro_batches(rows(), 25, PADDING)}
    counters.clear()
    results = []
    for settings in (Settings(), Settings(compile=True)):
        model = copy.deepcopy(policy[0])
        learner = Learner(model, Training(token_budget=25, learning_rate=1e-3), 0, settings)
        learner.update(samples(learner), seed=0, iteration=0)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert (results[0] - results[1]).abs().mean() < 1e-5
    # with gradients and without: layers and scores for all sizes, and scores of a single token
    assert counters["stats"]["unique_graphs"] == 6
    with pytest.raises(ValidationError, match="`compile` does not go with `zero_stage: 3`"):
        Settings(kind="deepspeed", zero_stage=3, compile=True)
