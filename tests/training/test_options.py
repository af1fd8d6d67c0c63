"""Options of the loss, the learner and the loop, each against what it is defined as."""

from __future__ import annotations

import copy
import sys
import types

import numpy as np
import pytest
import torch
from test_learner import rows, samples

from hgpo.config import Training
from hgpo.config.experiment import parse_config
from hgpo.errors import CheckpointError, ConfigError, HgpoError
from hgpo.rollout.policy import load_policy, named_weights, save_policy
from hgpo.training import learner as learner_module
from hgpo.training import loss
from hgpo.training.batches import Row, make_batch, micro_batches, padding_share
from hgpo.training.learner import Learner, Sample
from hgpo.training.loss import clipped_policy_loss, k3, response_log_probs, response_mean, value_loss
from hgpo.training.optimizer import Optimizer


def test_dual_clip_bounds_the_loss_of_bad_tokens_alone():
    old = torch.zeros(4)
    new = torch.tensor([2.0, 0.5, 2.0, -2.0])
    advantages = torch.tensor([-1.0, -1.0, 1.0, -1.0])
    plain, clipped = clipped_policy_loss(new, old, advantages, 0.2)
    dual, same = clipped_policy_loss(new, old, advantages, 0.2, dual_clip=3.0)
    assert torch.equal(clipped, same)
    assert plain[0] == pytest.approx(float(torch.tensor(2.0).exp())) and dual[0] == 3
    assert torch.equal(dual[1:], plain[1:])


def test_the_kl_term_is_finite_however_far_the_policies_are_apart():
    far = k3(torch.tensor([-200.0, 0.0]), torch.tensor([0.0, -200.0]))
    assert torch.isfinite(far).all() and far[0] > 1e8 and far[1] == pytest.approx(19)


def test_clip_higher_lets_good_tokens_rise_further():
    log_ratio = torch.log(torch.tensor([1.25, 1.35, 0.75, 1.25]))
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0])
    values, clipped = clipped_policy_loss(log_ratio, torch.zeros(4), advantages, 0.2, 0.3)
    assert values.tolist() == pytest.approx([-1.25, -1.3, -0.75, 1.25])
    assert clipped.tolist() == [False, True, False, False]


def test_the_sequence_ratio_is_the_geometric_mean_of_a_response():
    log_ratio = torch.tensor([0.1, 0.3, -0.2, 0.0, 0.2])
    lengths = torch.tensor([2, 3])
    values, _ = clipped_policy_loss(log_ratio, torch.zeros(5), torch.ones(5), 0.9, None, lengths)
    assert values.tolist() == pytest.approx([-np.exp(0.2)] * 2 + [-1.0] * 3)
    assert response_mean(log_ratio, lengths).tolist() == pytest.approx([0.2, 0.2, 0, 0, 0], abs=1e-7)


def test_the_value_loss_keeps_values_close_if_asked_to():
    values, old, returns = torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.0])
    assert value_loss(values, old, returns, None).item() == 0
    assert value_loss(values, old, returns, 0.5).item() == pytest.approx(1.5**2 / 2)


def test_projecting_in_chunks_changes_neither_values_nor_gradients(policy, monkeypatch):
    results = []
    for chunk in (10_000, 3):
        monkeypatch.setattr(loss, "CHUNK", chunk)
        model = copy.deepcopy(policy[0])
        values, entropy = response_log_probs(model, make_batch(rows(), 0, model.device), 0.7)
        (values.sum() + entropy.sum()).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((values.detach(), entropy.detach(), gradient))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_padding_stays_within_its_share():
    random = np.random.default_rng(1)
    lengths = random.integers(50, 1500, 256)
    made = [Row([1] * int(n), [2] * 20) for n in lengths]
    batches = micro_batches(made, 16384, 0.05)
    assert sorted(i for batch in batches for i in batch) == list(range(256))
    assert padding_share(made, batches) <= 0.05
    assert padding_share(made, [[0, 1, 2, 3]]) > 0.05


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_importance_weights_scale_the_policy_loss(policy, weight):
    losses = []
    for w in (None, weight):
        model = copy.deepcopy(policy[0])
        learner = Learner(model, Training(token_budget=100, kl_coefficient=0.0, clip=100.0), pad=0)
        given = [
            Sample(s.row, s.advantage, s.old_log_probs, s.reference_log_probs,
                   None if w is None else np.full_like(s.old_log_probs, w))
            for s in samples(learner)
        ]  # fmt: skip
        losses.append(learner.update(given, 0, 0)["loss/policy"])
    assert losses[1] == pytest.approx(weight * losses[0], rel=1e-5)


def test_the_entropy_bonus_raises_entropy(policy):
    def entropy_after(coefficient: float) -> float:
        model = copy.deepcopy(policy[0])
        settings = Training(learning_rate=1e-3, entropy_coefficient=coefficient, kl_coefficient=0.0)
        learner = Learner(model, settings, pad=0)
        flat = [Sample(s.row, 0.0, s.old_log_probs, s.reference_log_probs) for s in samples(learner)]
        for iteration in range(3):
            measured = learner.update(flat, 0, iteration)
        return measured["loss/entropy"]

    assert entropy_after(1.0) > entropy_after(0.0)


def test_small_steps_of_bfloat16_weights_add_up():
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = Optimizer([weight], learning_rate=1e-4, weight_decay=0.0, max_norm=1.0)
    for _ in range(100):
        optimizer.zero_grad()
        optimizer.backward(weight.sum())
        optimizer.step()
    assert float(weight) == pytest.approx(0.99, abs=0.004)  # each single step is far below its resolution


def test_gradient_checkpointing_changes_nothing_but_memory(policy):
    from hgpo.config.machinery import Learner as Settings

    results = []
    for checkpointing in (False, True):
        model = copy.deepcopy(policy[0])
        learner = Learner(model, Training(learning_rate=1e-3), 0, Settings(gradient_checkpointing=checkpointing))
        learner.update(samples(learner), 0, 0)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*results, atol=1e-6)


def test_out_of_memory_says_what_to_set(policy, monkeypatch):
    def exhausted(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    learner = Learner(copy.deepcopy(policy[0]), Training(token_budget=16000), pad=0)
    monkeypatch.setattr(learner_module, "response_log_probs", exhausted)
    with pytest.raises(
        HgpoError, match="out of memory in the learner's log-probabilities: CUDA out of memory"
    ) as caught:
        learner.log_probs(rows())
    assert "training.token_budget (16000)" in str(caught.value) and "gradient_checkpointing" in str(caught.value)


def test_ppo_trains_its_critic(experiment):
    experiment.train("ppo", iterations=4, critic={"learning_rate": 1e-2, "epochs": 4})
    lines = experiment.metrics("ppo")
    assert lines[0]["value/mean"] == 0.0 and lines[-1]["value/mean"] != 0.0
    assert all(np.isfinite(line["loss/value"]) for line in lines)


def test_ppo_goes_on_bitwise_equal(experiment, prepared, tmp_path):
    from test_resume import StopAfter

    from hgpo.errors import Interrupted

    (tmp_path / "whole").mkdir()
    whole = prepared.other(tmp_path / "whole")
    whole.train("ppo")
    with pytest.raises(Interrupted):
        experiment.train("ppo", stopped=StopAfter(20))
    experiment.train("ppo")
    assert experiment.metrics("ppo") == whole.metrics("ppo")
    assert experiment.weights("ppo") == whole.weights("ppo")


@pytest.mark.parametrize(
    "training",
    [
        {"ratio": "sequence", "clip_high": 0.3, "entropy_coefficient": 0.01},
        {"old_log_probs": "corrected", "correction_cap": 2.0},
        {"old_log_probs": "engine"},
    ],
)
def test_the_loop_runs_with_every_option(experiment, training):
    experiment.train(iterations=2, **training)
    lines = experiment.metrics()
    assert len(lines) == 2 and all(np.isfinite(line["loss/policy"]) for line in lines)
    if training.get("old_log_probs") == "corrected":
        assert lines[0]["correction/mean"] == pytest.approx(1.0, abs=1e-3)


def test_bfloat16_goes_on_bitwise_equal(experiment, prepared, tmp_path):
    from test_resume import StopAfter

    from hgpo.errors import Interrupted

    (tmp_path / "whole").mkdir()
    whole = prepared.other(tmp_path / "whole")
    model = {"dtype": "bfloat16"}
    whole.train(model=model)
    with pytest.raises(Interrupted):
        experiment.train(model=model, stopped=StopAfter(25))
    experiment.train(model=model)
    assert experiment.metrics() == whole.metrics() and experiment.weights() == whole.weights()


def test_adapters_learn_and_are_merged_into_a_plain_checkpoint(experiment, prepared, tmp_path):
    pytest.importorskip("peft")
    from test_resume import StopAfter

    from hgpo.errors import Interrupted

    lora = {"rank": 4, "alpha": 8}
    settings = {"lora": lora, "learning_rate": 1e-2, "mini_batch_steps": 0, "entropy_coefficient": 0.1}
    folder = experiment.train(**settings)
    trained, _ = load_policy(folder / "final")
    start, _ = load_policy(experiment.folder / "results/shop/start/tiny/webshop/K1")
    changed = {
        name
        for (name, one), (_, other) in zip(named_weights(trained), named_weights(start), strict=True)
        if not torch.equal(one, other)
    }
    assert changed and all(".self_attn." in name or ".mlp." in name for name in changed)
    lines = experiment.metrics()
    assert lines[0]["loss/kl"] == pytest.approx(0.0, abs=1e-6) and lines[-1]["loss/kl"] > 0

    (tmp_path / "broken").mkdir()
    broken = prepared.other(tmp_path / "broken")
    with pytest.raises(Interrupted):
        broken.train(**settings, stopped=StopAfter(25))
    broken.train(**settings)
    assert broken.metrics() == lines and broken.weights() == experiment.weights()


def test_a_model_without_chat_template_is_one_message(experiment):
    import yaml

    path = experiment.config()
    body = yaml.safe_load(path.read_text())
    body["environments"]["webshop"]["agent"]["chat"] = True
    from hgpo.config import Run
    from hgpo.training.loop import train
    from hgpo.training.signals import StopSignal

    with pytest.raises(CheckpointError, match="has no chat template") as caught:
        train(parse_config(body), Run("tiny", "webshop", "hgpo", 1, 0), StopSignal())
    assert "agent.chat: false" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"early_stopping": 2, "validate_every": 0}, "early_stopping needs validations"),
        ({"model": {"gpus": 1}}, "torch finds no GPU"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(experiment, changes, message):
    if "gpus" in str(changes) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=message):
        experiment.train(**changes)


def test_wandb_gets_numbers_and_no_keys(experiment, monkeypatch):
    logged, started = [], {}
    run = types.SimpleNamespace(log=lambda numbers, step: logged.append((step, numbers)), finish=lambda: None)
    fake = types.SimpleNamespace(init=lambda **options: started.update(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_API_KEY", "secret-key-of-mine")
    folder = experiment.train(iterations=2, tracking={"wandb": "offline"})
    assert [step for step, _ in logged] == [0, 1] and "loss/policy" in logged[0][1]
    assert started["mode"] == "offline" and started["config"]["training"]["clip"] == 0.2
    written = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    assert b"secret-key-of-mine" not in written and "secret-key-of-mine" not in str((started, logged))


def test_wandb_missing_is_one_message(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="needs the package wandb"):
        experiment.train(tracking={"wandb": "offline"})


RAY = {"gpus": 2, "placement": {"kind": "ray"}}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"engine": {"kind": "vllm", "sync": "ipc"}}, "needs GPUs, `engine.kind: vllm` and `placement.kind: ray`"),
        (RAY | {"engine": {"sync": "ipc"}}, "needs GPUs, `engine.kind: vllm` and `placement.kind: ray`"),
        (RAY | {"engine": {"kind": "vllm", "sync": "nccl"}}, "`engine.sync: nccl` needs `colocated: false`"),
        (
            RAY | {"engine": {"kind": "vllm", "sync": "ipc"}, "learner": {"kind": "deepspeed", "zero_stage": 3}},
            "not with `learner.zero_stage: 3`",
        ),
    ],
)
def test_ways_of_weight_sync_that_cannot_be_are_refused(experiment, model, message):
    with pytest.raises(ConfigError, match=message):
        experiment.train(model=model)


def test_a_prompt_that_the_model_has_no_room_for_stops_the_run_and_loses_nothing(experiment):
    model, tokenizer = load_policy(experiment.folder / "results/shop/start/tiny/webshop/K1")
    model.config.max_position_embeddings = 100
    save_policy(model, tokenizer, experiment.folder / "results/shop/start/tiny/webshop/K1")
    with pytest.raises(CheckpointError, match="do not fit the model's context of 100") as caught:
        experiment.train()
    assert "agent.max_prompt_tokens" in str(caught.value)
    assert experiment.checkpoints() == ["iteration-000000"]
