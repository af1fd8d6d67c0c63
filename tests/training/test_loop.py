"""In which order the training loop does things."""

from __future__ import annotations

import pytest

from hgpo.envs.pool import Pool
from hgpo.errors import EnvironmentFailure
from hgpo.rollout.collector import Collector
from hgpo.tasks import Task
from hgpo.training.learner import Learner


def test_tasks_are_expected_while_the_learner_works_and_before_they_begin(experiment, monkeypatch):
    told: list[list[str]] = []
    begun: list[list[str]] = []
    learnt: list[int] = []
    expect, submit, update = Pool.expect, Pool.submit, Learner.update

    def expecting(pool, tasks):
        tasks = list(tasks)
        told.append([task.id for task in tasks])
        begun.append([])
        expect(pool, tasks)

    def submitting(pool, episode, request):
        if isinstance(request, Task):
            begun[-1].append(request.id)
        submit(pool, episode, request)

    def updating(learner, *arguments):
        learnt.append(len(told))
        return update(learner, *arguments)

    monkeypatch.setattr(Pool, "expect", expecting)
    monkeypatch.setattr(Pool, "submit", submitting)
    monkeypatch.setattr(Learner, "update", updating)
    experiment.train(validate_every=0, validation_tasks=0)
    assert learnt == [2, 3, 3]  # the next iteration's are told before, and none after the last
    assert begun == told
    assert all(len(set(ids)) == 2 and len(ids) == 4 for ids in told)


def lose(monkeypatch, phase: str, count: int) -> None:
    """The first `count` episodes of each collection of a phase lose their environment."""
    real = Collector.collect

    def losing(collector, jobs, temperature, keys, *others):
        for number, episode in enumerate(real(collector, jobs, temperature, keys, *others)):
            if keys[0] == phase and number < count:
                episode.failed = "the wall fell down"
            yield episode

    monkeypatch.setattr(Collector, "collect", losing)


def test_lost_episodes_are_counted_and_the_journal_names_the_first(experiment, monkeypatch):
    lose(monkeypatch, "train", 1)
    folder = experiment.train(iterations=1, validate_every=0)
    [line] = experiment.metrics()
    assert line["failed"] == 1 and line["episodes"] == 2
    journal = (folder / "train.log").read_text()
    assert "iteration 1: 1 of 4 episodes lost their environment, first " in journal
    assert journal.count("the wall fell down") == 1


def test_the_worst_response_of_an_engine_that_misread_one_prompt_shows(experiment, monkeypatch):
    real = Collector.collect

    def misread(collector, jobs, temperature, keys, *others):
        for number, episode in enumerate(real(collector, jobs, temperature, keys, *others)):
            if keys[0] == "train" and number == 0:
                episode.steps[0].log_probs = [value - 2.0 for value in episode.steps[0].log_probs]
            yield episode

    monkeypatch.setattr(Collector, "collect", misread)
    experiment.train(iterations=1, validate_every=0)
    [line] = experiment.metrics()
    assert line["log_prob_gap_worst"] == pytest.approx(2.0, abs=1e-3)
    assert 0 < line["log_prob_gap"] < 1.0


def test_a_validation_without_an_episode_makes_no_policy_the_best(experiment, monkeypatch):
    lose(monkeypatch, "validation", 1)
    experiment.train(iterations=1)
    assert "validation after iteration 1: 1 of 2 episodes lost" in (experiment.run_folder() / "train.log").read_text()
    lose(monkeypatch, "validation", 2)
    with pytest.raises(EnvironmentFailure, match="no validation task could be played; first: .*: the wall fell down"):
        experiment.train(iterations=2, allow=True)
    assert '"iteration": 0' in (experiment.run_folder() / "best/best.json").read_text()
    monkeypatch.undo()
    experiment.train(iterations=2)
    assert len(experiment.metrics()) == 2
