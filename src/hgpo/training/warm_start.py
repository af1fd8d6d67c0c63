"""The checkpoint that reinforcement learning starts from: a model, fine-tuned on expert episodes of training tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hgpo.agent import Template, build_prompt, load_template, make_memory
from hgpo.config import Config, Model, WarmStart, check_chat, check_model
from hgpo.envs.panels import verified_panel
from hgpo.errors import DataError, HgpoError
from hgpo.files import write_json
from hgpo.progress import progress
from hgpo.rollout.demonstrations import Demonstration, prompt_ids
from hgpo.rollout.opening import device_of, dtype_of
from hgpo.rollout.policy import checkpoint_of, load_policy, policy_hash, save_policy
from hgpo.streams import stream
from hgpo.tasks import Panel, hold_out
from hgpo.training.batches import Row, make_batch, micro_batches
from hgpo.training.candidates import make_candidates
from hgpo.training.embedded import build_model, train_tokenizer
from hgpo.training.experts import Stage, play_demonstrations
from hgpo.training.learner import compile_layers
from hgpo.training.loss import imitation_loss
from hgpo.training.optimizer import Optimizer
from hgpo.versions import code_commit, hardware


def make_start(config: Config, model_name: str, environment: str, history: int, folder: Path) -> dict[str, Any]:
    """Writes the starting checkpoint of (model, environment, K) to `folder` and returns its record.

    The record (`checkpoint.json`) holds the checkpoint's hash, the panel's hash, and how well the expert and the
    fine-tuning did. Only tasks of the training panel are played. With `warm_start.target_success`, the policy that
    is kept is chosen on the tasks held out for validation.
    """
    check_model(config, model_name)
    check_chat(config, model_name, environment)
    settings, protocol = config.warm_start_for(environment), config.environment(environment)
    model_settings = config.models[model_name]
    panel = verified_panel(config.data_folder(environment), environment, protocol.train_split)
    template = load_template(protocol.agent.template)
    training, held_out = hold_out(panel, config.training_for(environment).validation_tasks)
    candidates = make_candidates(config, model_name, environment, history, held_out)
    demonstrations = _play(config, environment, training, settings)
    record: dict[str, Any] = {
        "model": model_name,
        "source": model_settings.source,
        "environment": environment,
        "history": history,
        "panel_hash": panel.hash,
        "template": template.label,
        "demonstrations": len(demonstrations),
        "expert_success": sum(d.won for d in demonstrations) / max(len(demonstrations), 1),
    }
    model, tokenizer = _base_model(model_name, model_settings, demonstrations, template, history, settings.seed)
    turns = [turn for d in demonstrations if d.won for turn in d.turns]
    rows = [
        Row(
            prompt_ids(turn, tokenizer, template, protocol, history),
            tokenizer.encode(turn.reply, add_special_tokens=False) + [tokenizer.eos_token_id],
        )
        for turn in turns
    ]
    if rows:
        model.to(device_of(model_settings))
        if model_settings.learner.compile:
            compile_layers(model)
        print(f"warm start: {len(rows)} turns of {sum(d.won for d in demonstrations)} won episodes", flush=True)
        show = partial(candidates.show, model, tokenizer) if candidates else None
        record |= fine_tune(model, rows, settings, tokenizer.pad_token_id, show)
        record |= candidates.restore(model) if candidates else {}
    save_policy(model, tokenizer, folder)
    record |= {"hash": policy_hash(folder), "commit": code_commit(), "hardware": hardware()}
    write_json(folder / "checkpoint.json", record)
    return record


def fine_tune(
    model: Any, rows: Sequence[Row], settings: WarmStart, pad: int, show: Callable[[int], None] | None = None
) -> dict[str, float]:
    """Supervised fine-tuning with AdamW and a cosine schedule: mean cross-entropy over tokens, see `prompt_weight`.

    show: called with the number of updates done, `settings.candidates` times at equal distances, last at the end.
    """
    optimizer = Optimizer(model.parameters(), settings.learning_rate, weight_decay=0.01, max_norm=1.0)
    batches = micro_batches(rows, settings.token_budget)
    total = max(1, math.ceil(settings.epochs * len(batches)))
    order = [
        index
        for epoch in range(math.ceil(settings.epochs))
        for index in stream(settings.seed, "shuffling", "warm start", epoch).permutation(len(batches))
    ][:total]
    shown = {math.ceil(total * (n + 1) / settings.candidates) for n in range(settings.candidates)} if show else set()
    model.train()
    recent: list[float] = []
    for number, index in enumerate(progress(order, total=len(order), desc="warm start", unit="batch")):
        warm_up = min(1.0, (number + 1) / max(1, total // 20))
        optimizer.learning_rate = settings.learning_rate * warm_up * 0.5 * (1 + math.cos(math.pi * number / total))
        batch = make_batch([rows[i] for i in batches[index]], pad, model.device)
        loss = imitation_loss(model, batch, settings.prompt_weight)
        optimizer.zero_grad()
        optimizer.backward(loss)
        recent = [*recent[-19:], float(loss.detach())]
        if not math.isfinite(recent[-1]) or not math.isfinite(optimizer.step()):
            raise HgpoError("the warm start's loss is not finite", "lower warm_start.learning_rate")
        if show and number + 1 in shown:
            model.eval()
            show(number + 1)
            model.train()
    model.eval()
    return {"loss": sum(recent) / len(recent), "updates": total, "turns": len(rows)}


def _play(config: Config, environment: str, training: Panel, settings: WarmStart) -> list[Demonstration]:
    if not settings.demonstrations:
        return []
    if settings.tasks and settings.tasks > len(training):
        raise DataError(
            f"warm_start.tasks: {settings.tasks} wanted, but {len(training)} tasks of {environment} are trained on",
            "lower it, or prepare more tasks",
        )
    max_steps = config.environment(environment).max_steps
    tasks = training.tasks[: settings.tasks]
    stage = Stage(environment, config.data_folder(environment), tasks, max_steps, settings)
    workers = config.training_for(environment).environment_workers
    demonstrations = play_demonstrations(stage, settings.demonstrations, workers)
    if not any(d.won for d in demonstrations):
        raise DataError(
            f"the expert won none of {len(demonstrations)} training tasks of {environment} within {max_steps} steps",
            f"raise environments.{environment}.max_steps",
        )
    return demonstrations


def _base_model(
    name: str, settings: Model, demonstrations: Sequence[Demonstration], template: Template, history: int, seed: int
) -> tuple[Any, Any]:
    if settings.source != "embedded":
        return load_policy(checkpoint_of(name, settings.source, settings.revision), dtype_of(settings))
    if not demonstrations:
        raise DataError(
            "the embedded model makes its tokenizer from demonstrations, but warm_start.demonstrations is 0",
            "set warm_start.demonstrations to 1 or more",
        )
    texts: list[str] = []
    for demonstration in demonstrations:
        for turn in demonstration.turns:
            memory = make_memory("window", history)
            for observation, action in turn.history:
                memory.add(observation, action)
            prompt = build_prompt(template, turn.goal, memory, turn.observation, turn.admissible, turn.step)
            texts.append(prompt + "\n")
            texts.append(turn.reply)
    tokenizer = train_tokenizer(texts, settings.embedded.vocabulary)
    model = build_model(settings.embedded, tokenizer, seed)
    return model.to(getattr(torch, dtype_of(settings))), tokenizer
