"""Opens what a run works with: learner, critic, engine; in this process or spread over Ray actors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgpo.errors import CheckpointError
from hgpo.rollout.engines import Engine
from hgpo.rollout.opening import device_of, dtype_of, open_vllm
from hgpo.rollout.policy import load_policy
from hgpo.rollout.transformers_engine import TransformersEngine
from hgpo.training.adapters import add_adapters
from hgpo.training.checkpoint import damaged
from hgpo.training.critic import Critic
from hgpo.training.learner import Learner
from hgpo.training.plan import Plan


@dataclass
class Machines:
    """learner: computes log-probabilities and learns. engine: generates. critic: only for `ppo`.

    Those of several ranks have the methods of one.
    """

    learner: Any
    engine: Engine
    tokenizer: Any
    critic: Any = None

    def write(self, folder: Path) -> None:
        """Fills a folder with the policy (a Hugging Face checkpoint) and the state of learner and critic."""
        self.learner.write_policy(folder)
        self.learner.write_state(folder)
        if self.critic:
            self.critic.write_state(folder)


@contextmanager
def open_machines(plan: Plan, checkpoint: Path | None, version: int) -> Iterator[Machines]:
    """Learner, engine and critic in the state of `checkpoint` (None: of the start), closed at the end.

    version: the weight version that state is.
    """
    if plan.model.placement.kind == "ray":
        from hgpo.training.cluster import open_cluster

        with open_cluster(plan, checkpoint, version) as machines:
            yield machines
        return
    learner, tokenizer = make_learner(plan, checkpoint)
    critic = make_critic(plan, learner, checkpoint)
    engine = make_engine(plan, learner, tokenizer, version)
    try:
        yield Machines(learner, engine, tokenizer, critic)
    finally:
        try:
            engine.close()
        finally:
            learner.close()


def make_learner(plan: Plan, checkpoint: Path | None) -> tuple[Learner, Any]:
    """(learner in the state of `checkpoint` or the start, tokenizer).

    Raises CheckpointError for a checkpoint that does not load or a tokenizer without a needed chat template.
    """
    settings, training = plan.model.learner, plan.training
    model, tokenizer = load_policy(
        plan.start, dtype_of(plan.model), device=device_of(plan.model), attention=settings.attention
    )
    check_chat(plan, tokenizer)
    reference = None
    if training.lora.rank:
        add_adapters(model, training.lora, plan.run.seed)
    else:
        reference = copy.deepcopy(model).requires_grad_(False)
    if settings.kind == "deepspeed":
        from hgpo.training.on_ranks import DeepSpeedLearner

        kind: type[Learner] = DeepSpeedLearner
    else:
        kind = Learner
    learner = kind(model, training, tokenizer.pad_token_id, settings, reference, tokenizer)
    if checkpoint:
        read_state(learner, checkpoint)
    return learner, tokenizer


def make_critic(plan: Plan, learner: Learner, checkpoint: Path | None) -> Critic | None:
    """The critic of `ppo`, in the state of `checkpoint` or the start; None for other methods."""
    if plan.estimator != "ppo":
        return None
    training, machinery = plan.training, plan.model.learner
    if machinery.kind == "deepspeed":
        from hgpo.training.on_ranks import DeepSpeedCritic

        kind: type[Critic] = DeepSpeedCritic
    else:
        kind = Critic
    critic = kind(
        learner.reference,
        training.critic,
        training.token_budget,
        training.max_gradient_norm,
        learner.pad,
        machinery,
    )
    if checkpoint:
        read_state(critic, checkpoint)
    return critic


def make_engine(plan: Plan, learner: Learner, tokenizer: Any, version: int) -> Engine:
    """The engine of a run in one process, with the learner's weights."""
    if plan.model.engine.kind == "transformers":
        end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        return TransformersEngine(learner.model, end, pad, max_batch=plan.batch, version=version)
    agent = plan.protocol.agent
    context = agent.max_prompt_tokens + agent.max_response_tokens
    engine = open_vllm(plan.model, plan.start, context, plan.batch, tokenizer.eos_token_id)
    engine.update_weights(learner, version)
    return engine


def check_chat(plan: Plan, tokenizer: Any) -> None:
    """Raises CheckpointError if the protocol asks for a chat template and the model has none."""
    if plan.protocol.agent.chat and not getattr(tokenizer, "chat_template", None):
        raise CheckpointError(
            f"the tokenizer of {plan.start} has no chat template",
            f"use an instruction-tuned model, or set environments.{plan.run.environment}.agent.chat: false",
        )


def read_state(part: Any, checkpoint: Path) -> None:
    """Brings a learner or critic to the state of a checkpoint. Raises CheckpointError if it is damaged."""
    try:
        part.read_state(checkpoint)
    except CheckpointError:
        raise
    except Exception as error:  # torch raises anything from OSError to RuntimeError
        raise damaged(checkpoint, error) from None
