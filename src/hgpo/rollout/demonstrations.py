"""Expert episodes of training tasks, as text for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hgpo.agent import Template, encode_prompt, make_memory
from hgpo.config import EnvironmentSettings
from hgpo.envs.base import Environment, Expert
from hgpo.errors import EnvironmentFailure
from hgpo.streams import stream
from hgpo.tasks import Task


@dataclass(frozen=True)
class Turn:
    """One turn of an expert episode: everything a prompt is made of, and the reply to learn."""

    task: str
    goal: str
    history: tuple[tuple[str, str], ...]
    observation: str
    admissible: tuple[str, ...]
    step: int
    reply: str


@dataclass(frozen=True)
class Demonstration:
    """An expert episode. Steps at which a random action was played are part of the history, but not learnt."""

    task: str
    won: bool
    turns: tuple[Turn, ...]


def demonstrate(
    tasks: Sequence[Task],
    numbers: Iterable[int],
    environment: Environment,
    expert: Callable[[Environment], Expert],
    max_steps: int,
    noise: float,
    seed: int,
    hesitation: float = 0.0,
) -> Iterator[Demonstration]:
    """Lets the expert play the episodes of these numbers; episode n is of task n, going round the tasks in order.

    Each depends on (seed, task, round) alone.
    noise: share of steps at which a random admissible action is played instead, from the second round on.
    hesitation: share of steps at which one of the expert's idle actions is played and demonstrated instead; episodes
        may be longer in proportion, so that as many are won.
    """
    limit = round(max_steps / (1 - hesitation))
    for number in numbers:
        lap, position = divmod(number, len(tasks))
        task = tasks[position]
        random = stream(seed, "environment", "demonstration", task.id, lap)
        observation = environment.reset(task)
        player = expert(environment)
        player.begin(task, observation)
        turns: list[Turn] = []
        history: list[tuple[str, str]] = []
        for step in range(limit):
            idle = player.idle(observation) if hesitation else ()
            if idle and random.random() < hesitation:
                action = idle[int(random.integers(len(idle)))]
            else:
                try:
                    action = player.act(observation)
                except EnvironmentFailure:
                    break  # the expert gives up: the task counts as lost
            choices = [a for a in observation.admissible if "<" not in a]
            stray = lap > 0 and bool(choices) and random.random() < noise
            if stray:
                action = choices[int(random.integers(len(choices)))]
            else:
                reply = f"<think>{thought(action)}</think><action>{action}</action>"
                turns.append(
                    Turn(
                        task.id,
                        observation.goal,
                        tuple(history),
                        observation.text,
                        observation.admissible,
                        step,
                        reply,
                    )
                )
            history.append((observation.text, action))
            observation = environment.step(action)
            if observation.done:
                break
        yield Demonstration(task.id, observation.won, tuple(turns))


def thought(action: str) -> str:
    """A short plan in words for an action of the expert: what kind of step comes next."""
    verb = action.split("[")[0] if "[" in action else action.split(" ")[0]
    return {
        "go": "look further",
        "open": "look inside",
        "take": "this is needed",
        "move": "it belongs here",
        "use": "switch it on",
        "look": "where am I",
        "inventory": "what do I hold",
        "search": "find products",
        "click": "this fits",
    }.get(verb, f"{verb} it")


def prompt_ids(
    turn: Turn, tokenizer: Any, template: Template, protocol: EnvironmentSettings, history: int
) -> list[int]:
    """The prompt of a turn exactly as the agent loop builds it."""
    memory = make_memory(protocol.agent.memory, history)
    for observation, action in turn.history:
        memory.add(observation, action)
    return encode_prompt(
        tokenizer,
        template,
        turn.goal,
        memory,
        turn.observation,
        turn.admissible,
        turn.step,
        protocol.agent.max_prompt_tokens,
        "required" if protocol.agent.chat else "never",
    ).ids
