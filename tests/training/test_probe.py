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
    """Completes each request at the second poll after it, with log-probability -1 a token, or `beside` if another was
    under way when it came; refuses what is longer than the context."""

    def __init__(self, version: int, beside: float = -1.0) -> None:
        self.version, self.requests = version, []
        self._beside, self._open = beside, {}

    def submit(self, request: Request) -> None:
        check_request(request, CONTEXT)
        self.requests.append(request)
        says = self._beside if any(polls for polls, *_ in self._open.values()) else -1.0
        self._open[request.id] = (0, says, request.max_tokens)

    def poll(self) -> list[Completion]:
        self._open = {number: (polls + 1, *rest) for number, (polls, *rest) in self._open.items()}
        done = {number: rest for number, (polls, *rest) in self._open.items() if polls == 2}
        self._open = {number: rest for number, rest in self._open.items() if number not in done}
        return [Completion(n, [1] * most, [says] * most, "length", self.version) for n, (says, most) in done.items()]


def gap(
    says: float, version: int = 3, most: int = CONTEXT - PROMPT, beside: float = -1.0
) -> tuple[dict[str, float], Told]:
    engine = Told(version, beside)
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


def test_an_engine_that_misreads_prompts_beside_responses_under_way_stops_the_run():
    with pytest.raises(HgpoError, match="after weight update 3 engine and learner differ"):
        gap(-1.0, beside=-1.5)


@pytest.mark.parametrize(("says", "version"), [(-4.0, 3), (float("nan"), 3), (-1.0, 2)])
def test_weights_that_did_not_arrive_stop_the_run(says, version):
    with pytest.raises(HgpoError, match="after weight update 3 engine and learner differ"):
        gap(says, version)
