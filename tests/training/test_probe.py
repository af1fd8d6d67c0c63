"""The probe after a weight update, with an engine that says what it is told to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hgpo.config.machinery import Engine as Settings
from hgpo.errors import HgpoError
from hgpo.rollout.engines import Completion, Request, check_request
from hgpo.training.batches import Row
from hgpo.training.probe import check_gap

CONTEXT, PROMPT = 28, 20


class Told:
    """Completes all requests with log-probability -1 a token; refuses what is longer than the context."""

    def __init__(self, version: int) -> None:
        self.version, self.requests = version, []

    def submit(self, request: Request) -> None:
        check_request(request, CONTEXT)
        self.requests.append(request)

    def poll(self) -> list[Completion]:
        return [
            Completion(r.id, [1] * r.max_tokens, [-1.0] * r.max_tokens, "length", self.version) for r in self.requests
        ]


def gap(says: float, version: int = 3, most: int = CONTEXT - PROMPT) -> tuple[dict[str, float], Told]:
    engine = Told(version)
    learner = SimpleNamespace(log_probs=lambda rows: [np.full(len(row.response_ids), says) for row in rows])
    rows = [Row([5] * PROMPT, [6])] * 20
    return check_gap(SimpleNamespace(engine=engine, learner=learner), Settings(), 1.0, rows, 3, most), engine


def test_the_gap_is_the_mean_difference():
    found, engine = gap(-1.0625)
    assert found == {"sync_gap": pytest.approx(0.0625)}
    assert len(engine.requests) == 8


def test_the_longest_prompt_leaves_room_for_the_probe():
    _, engine = gap(-1.0)
    assert {request.max_tokens for request in engine.requests} == {CONTEXT - PROMPT}


@pytest.mark.parametrize(("says", "version"), [(-4.0, 3), (float("nan"), 3), (-1.0, 2)])
def test_weights_that_did_not_arrive_stop_the_run(says, version):
    with pytest.raises(HgpoError, match="after weight update 3 engine and learner differ"):
        gap(says, version)
