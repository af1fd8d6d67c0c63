"""Whether a weight update has arrived: engine and learner must agree on the probability of what the engine says."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hgpo.config.machinery import Engine as Settings
from hgpo.errors import HgpoError
from hgpo.rollout.engines import Completion, Request
from hgpo.rollout.transformers_engine import TransformersEngine
from hgpo.streams import derive_seed
from hgpo.training.batches import Row
from hgpo.training.machines import Machines

PROMPTS, TOKENS = 8, 16


def check_gap(
    machines: Machines, settings: Settings, temperature: float, rows: Sequence[Row], version: int, most: int = TOKENS
) -> dict[str, float]:
    """Mean |difference| of log-probabilities on a few short completions, as `sync_gap`; nothing for an engine that
    uses the learner's own weights. most: tokens that a response may have, so that any prompt leaves room for them.
    The prompts arrive one after the other, so that, as in a rollout, each is read beside responses under way.

    Raises HgpoError if it is larger than `engine.gap_alarm`.
    """
    if isinstance(machines.engine, TransformersEngine):
        return {}
    prompts = [row.prompt_ids for row in rows[:: max(1, len(rows) // PROMPTS)][:PROMPTS]]
    done: list[Completion] = []
    for number, prompt in enumerate(prompts):
        seed = derive_seed(version, "sampling", "probe", number)
        machines.engine.submit(Request(number, prompt, seed, min(TOKENS, most), temperature))
        done += machines.engine.poll()
    deadline = time.monotonic() + settings.timeout_s
    while len(done) < len(prompts):
        done += machines.engine.poll()
        if time.monotonic() > deadline:
            raise HgpoError(
                f"after weight update {version} the engine does not answer", "see its log; raise engine.timeout_s"
            )
    done.sort(key=lambda completion: completion.id)
    learnt = machines.learner.log_probs([Row(prompts[c.id], c.token_ids) for c in done])
    theirs = np.concatenate([np.asarray(c.log_probs, np.float32) for c in done])
    gap = float(np.abs(np.concatenate(learnt) - theirs).mean())
    if not gap <= settings.gap_alarm or {c.version for c in done} != {version}:
        raise HgpoError(
            f"after weight update {version} engine and learner differ by {gap:.3f} in mean |log-probability| "
            f"(allowed: {settings.gap_alarm})",
            "the engine generates with old weights, or in a much lower precision; if the latter is wanted, raise "
            "engine.gap_alarm",
        )
    return {"sync_gap": gap}
