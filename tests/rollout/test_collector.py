from __future__ import annotations

import pytest
from corridor import Corridor, panel, task

from hgpo.agent import load_template
from hgpo.config import EnvironmentSettings
from hgpo.config.experiment import Agent
from hgpo.envs.pool import Pool
from hgpo.rollout.collector import Collector, Job
from hgpo.rollout.engines import Completion
from hgpo.rollout.episode import step_columns
from hgpo.rollout.transformers_engine import TransformersEngine

PROTOCOL = EnvironmentSettings(
    max_steps=6,
    agent=Agent(template="alfworld-compact-v1", chat=False, max_prompt_tokens=300, max_response_tokens=8),
    evaluation_splits={},
)


class Scripted:
    """An engine that always says the same words."""

    static = True
    version = 3

    def __init__(self, tokenizer, reply: str) -> None:
        self._ids = tokenizer.encode(reply)
        self._waiting: list = []
        self.requests: list = []

    def submit(self, request) -> None:
        self._waiting.append(request)
        self.requests.append(request)

    def poll(self):
        batch, self._waiting = self._waiting, []
        return [Completion(r.id, self._ids, [-1.0] * len(self._ids), "stop", self.version) for r in batch]

    def clear(self) -> None:
        self._waiting = []


class Broken(Corridor):
    def step(self, action):
        raise RuntimeError("the wall fell down")


def collect(policy, engine, jobs, environment=Corridor, workers=0, at_once=128, counted=None, **options):
    _, tokenizer = policy
    template = load_template(PROTOCOL.agent.template)
    with Pool(environment, workers=workers) as pool:
        collector = Collector(PROTOCOL, 2, template, tokenizer, engine, pool, seed=11, **options)
        episodes = sorted(collector.collect(jobs, 1.0, ("train", 0), at_once), key=lambda e: e.trajectory)
    if counted is not None:
        counted["statistics"] = collector.statistics
    return episodes


def test_wins_with_the_right_words_and_stops_at_the_step_limit(policy):
    reply = "<think>x</think><action>Open Door</action>"
    engine = Scripted(policy[1], reply)
    won, lost = collect(policy, engine, [Job(task(0)), Job(task(2))])
    assert won.won and won.score == 1.0 and len(won.steps) == 1 and won.steps[0].reward == 10.0
    assert not lost.won and len(lost.steps) == PROTOCOL.max_steps
    assert {s.action for s in lost.steps} == {"open door"} and not any(s.invalid for s in lost.steps)
    assert {s.version for s in lost.steps} == {3}


def test_the_prompt_shows_the_last_two_steps_and_keeps_sampled_ids(policy):
    _, tokenizer = policy
    engine = Scripted(tokenizer, "<think>x</think><action>go right</action>")
    (episode,) = collect(policy, engine, [Job(task(0))])
    texts = [tokenizer.decode(request.prompt_ids) for request in engine.requests]
    assert [text.count("> go right") for text in texts[:4]] == [0, 1, 2, 2]
    assert "open the door at place 0" in texts[0]
    assert [step.prompt_ids for step in episode.steps] == [request.prompt_ids for request in engine.requests]


def test_a_reply_without_tags_is_invalid_but_executed(policy):
    (episode,) = collect(policy, Scripted(policy[1], "go right"), [Job(task(1))])
    assert episode.steps[0].invalid and episode.steps[0].action == "go right"
    assert "place 1" in episode.steps[1].state


def test_seeds_differ_between_rollouts_and_steps(policy):
    engine = Scripted(policy[1], "nothing")
    collect(policy, engine, [Job(task(1), rollout) for rollout in range(3)])
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds) == 3 * PROTOCOL.max_steps


@pytest.mark.parametrize(("workers", "at_once"), [(2, 128), (1, 3)])
def test_episodes_do_not_depend_on_workers_or_on_how_many_run_at_once(policy, workers, at_once):
    model, tokenizer = policy
    jobs = [Job(t, rollout) for t in panel().tasks for rollout in range(2)]

    def play(**how):
        engine = TransformersEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
        return collect(policy, engine, jobs, **how)

    one, other = play(), play(workers=workers, at_once=at_once)
    assert [e.record() for e in one] == [e.record() for e in other]
    assert [s.response_ids for e in one for s in e.steps] == [s.response_ids for e in other for s in e.steps]


def test_a_broken_environment_is_reported_with_its_task(policy):
    engine = Scripted(policy[1], "go right")
    (episode,) = collect(policy, engine, [Job(task(1))], environment=Broken)
    assert "the wall fell down" in episode.failed and episode.task == "door-1"


def test_columns_have_a_row_per_step(policy):
    episodes = collect(policy, Scripted(policy[1], "go right"), [Job(task(1), r) for r in range(2)])
    columns = step_columns(episodes)
    assert {len(values) for values in columns.values()} == {2 * PROTOCOL.max_steps}
    assert columns["trajectory"][0] == "door-1#0" and columns["trajectory"][-1] == "door-1#1"
