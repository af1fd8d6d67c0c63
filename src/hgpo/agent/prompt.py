"""From goal, memory and observation to a prompt, and from a prompt to token ids within a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hgpo.agent.memory import Memory, SlidingWindow
from hgpo.agent.template import Template, load_template, parse_template, template_names
from hgpo.errors import ConfigError

__all__ = [
    "ChatTemplate",
    "EncodedPrompt",
    "Template",
    "build_prompt",
    "encode_prompt",
    "load_template",
    "parse_template",
    "template_names",
]

ChatTemplate = Literal["auto", "required", "never"]


def build_prompt(
    template: Template,
    goal: str,
    memory: Memory,
    observation_text: str,
    admissible: Sequence[str],
    step: int,
    history_limit: int | None = None,
) -> str:
    """The prompt of one step, in words.

    step: steps taken so far, 0 at the first prompt. history_limit: show at most that many remembered pairs.
    Line breaks within remembered observations become spaces; all other text is inserted as it is.
    """
    sections, joiners = template.sections, template.joiners
    recalled = memory.recall(history_limit)
    history = ""
    if recalled.digest:
        history += sections["digest"].format(digest=recalled.digest) + "\n"
    if recalled.pairs:
        lines = [
            sections["pair"].format(step=pair.step, observation=" ".join(pair.observation.split()), action=pair.action)
            for pair in recalled.pairs
        ]
        history += sections["pairs"].format(count=len(lines), pairs=joiners["pairs"].join(lines)) + "\n"
    actions = joiners["action"].join([sections["action"].format(action=action) for action in admissible])
    return sections["prompt"].format(
        goal=goal,
        steps_taken=step,
        step=step + 1,
        history=history,
        observation=observation_text,
        actions=actions,
    )


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model gets it.

    ids: token ids, at most `max_tokens`. text: the text they were made from, before any left truncation.
    full_tokens: length with the whole recalled history. pairs_dropped: remembered (observation, action) pairs left
    out, oldest first, to fit. digest_dropped: the summary of older steps then went, too. tokens_truncated: tokens then
    cut off on the left, 0 if dropping history was enough.
    """

    ids: list[int]
    text: str
    full_tokens: int
    pairs_dropped: int = 0
    digest_dropped: bool = False
    tokens_truncated: int = 0

    @property
    def truncated(self) -> bool:
        return self.pairs_dropped > 0 or self.digest_dropped or self.tokens_truncated > 0


def encode_prompt(
    tokenizer: Any,
    template: Template,
    goal: str,
    memory: Memory,
    observation_text: str,
    admissible: Sequence[str],
    step: int,
    max_tokens: int,
    chat_template: ChatTemplate = "auto",
) -> EncodedPrompt:
    """Builds the prompt and encodes it into at most `max_tokens` token ids.

    Too long, it is built again with one remembered pair fewer, oldest first, until it fits; then without a summary of
    older steps; if it is too long even so, it loses tokens on the left, as upstream. All is counted in the result.

    tokenizer: a Hugging Face tokenizer. chat_template: `auto` wraps the prompt as a user turn if the tokenizer has
    a chat template; `required` insists on one; `never` encodes the bare prompt with a line break after it.
    Raises ConfigError if a chat template is required and missing, or `max_tokens` is not positive.
    """
    if max_tokens < 1:
        raise ConfigError(f"prompt limit of {max_tokens} tokens", "give at least 1 token")
    wrap = uses_chat_template(tokenizer, chat_template)

    def encode(recalled: Memory, limit: int | None = None) -> tuple[str, list[int]]:
        prompt = build_prompt(template, goal, recalled, observation_text, admissible, step, limit)
        return _encode_text(tokenizer, prompt, wrap)

    text, ids = encode(memory)
    full_tokens, shown = len(ids), len(memory.recall().pairs)
    kept, digest_dropped = shown, False
    while len(ids) > max_tokens and kept > 0:
        kept -= 1
        text, ids = encode(memory, kept)
    if len(ids) > max_tokens and memory.recall(0).digest:
        digest_dropped = True
        text, ids = encode(SlidingWindow(0))
    cut = max(0, len(ids) - max_tokens)
    return EncodedPrompt(ids[cut:], text, full_tokens, shown - kept, digest_dropped, cut)


def uses_chat_template(tokenizer: Any, chat_template: ChatTemplate) -> bool:
    """Whether prompts are wrapped as a user turn. Raises ConfigError as `encode_prompt` does."""
    if chat_template not in ("auto", "required", "never"):
        raise ConfigError(f"chat_template: {chat_template!r} is unknown", "use auto, required or never")
    has_one = bool(getattr(tokenizer, "chat_template", None))
    if chat_template == "required" and not has_one:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ConfigError(
            f"the tokenizer {name} has no chat template, but `agent.chat` is true",
            "use an instruction-tuned model, or set environments.<name>.agent.chat: false",
        )
    return has_one and chat_template != "never"


def _encode_text(tokenizer: Any, prompt: str, wrap: bool) -> tuple[str, list[int]]:
    if not wrap:
        text = prompt + "\n"
        return text, list(tokenizer.encode(text))
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    return text, list(tokenizer.encode(text, add_special_tokens=False))
