"""In which order the training loop does things."""

from __future__ import annotations

from hgpo.envs.pool import Pool
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
