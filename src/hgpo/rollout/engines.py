"""What a generation engine is to the rest of the project: token ids in, token ids with log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hgpo.errors import CheckpointError, EnvironmentFailure


@dataclass(frozen=True)
class Request:
    """One completion wanted.

    id: chosen by the caller, comes back with the completion.
    seed: the only source of randomness of this completion; it does not depend on what else is in the batch.
    temperature: 0 is greedy.
    """

    id: int
    prompt_ids: list[int]
    seed: int
    max_tokens: int
    temperature: float = 1.0


@dataclass(frozen=True)
class Completion:
    """token_ids hold the end token if one was sampled; log_probs are at the sampling temperature (greedy: at 1).

    finish: `stop` (end token) or `length`. version: the weight version that made its last token.
    mixed: the weights changed while it was being made.
    usage: (prompt, response) tokens as the engine counts them, where its tokens are not those of the ids.
    """

    id: int
    token_ids: list[int]
    log_probs: list[float]
    finish: str
    version: int
    mixed: bool = False
    usage: tuple[int, int] | None = None


class Engine(Protocol):
    """Generates completions.

    static: the engine works through whole batches, so for results that do not depend on timing the caller has to
        submit everything it can before it polls. Any other engine decodes while environments work: its random
        numbers come from each request's own seed, so timing changes no more than the rounding of its batches.
    version: version of the weights in use.
    An engine that works beside this process, not in `poll`, has `busy_s`, too: the seconds in which it has worked.
    """

    static: bool

    @property
    def version(self) -> int: ...

    def submit(self, request: Request) -> None:
        """Takes a request in. Raises HgpoError if it cannot be completed: empty, or longer than the context."""
        ...

    def poll(self) -> list[Completion]:
        """Works for a moment and returns what has been completed: a static engine a whole batch, others perhaps
        nothing yet."""
        ...

    def update_weights(self, model: Any, version: int) -> None:
        """Uses the weights of `model` (see `hgpo.rollout.policy.named_weights`) from now on and wakes up."""
        ...

    def sleep(self) -> None:
        """Gives memory back until the next `update_weights`, where the engine can."""
        ...

    def clear(self) -> None:
        """Drops every request that is not completed."""
        ...

    def close(self) -> None: ...


def check_request(request: Request, context: int) -> None:
    """Raises EnvironmentFailure for an empty prompt, CheckpointError for a request beyond the model's context."""
    if not request.prompt_ids:
        raise EnvironmentFailure(f"request {request.id}: empty prompt", "check the prompt template")
    if len(request.prompt_ids) + request.max_tokens > context:
        raise CheckpointError(
            f"request {request.id}: {len(request.prompt_ids)} prompt + {request.max_tokens} response tokens do "
            f"not fit the model's context of {context}",
            "lower agent.max_prompt_tokens or agent.max_response_tokens",
        )
