"""Statistics over tasks, evaluation seeds and training seeds. docs/statistics.md explains each choice.

Outcomes of one cell (a model, environment, method, K and split) are an array of shape (training seeds S,
evaluation seeds E, tasks T): success as 0/1, or the task score in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hgpo.streams import stream

Array = NDArray[np.float64]
RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """A cell in numbers, in the unit of the outcomes. sd is NaN where there are fewer than two seeds.

    mean: over everything. sd_evaluation: between evaluation seeds (ddof 1), averaged over training seeds, as in the
    paper. sd_training: between training seeds (ddof 1) of their means. low, high: 95 % interval of the mean.
    iqm: interquartile mean over tasks of the mean over seeds.
    """

    mean: float
    sd_evaluation: float
    sd_training: float
    low: float
    high: float
    iqm: float
    tasks: int
    evaluation_seeds: int
    training_seeds: int


@dataclass(frozen=True)
class Difference:
    """`effect` = mean(first) − mean(second), with its paired 95 % interval."""

    effect: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A difference and its test.

    p: two-sided paired permutation test over tasks; with several training seeds the larger one of it and of a t-test
    over tasks and training seeds. detectable: the smallest difference that the t-test at level 0.05 finds with power
    0.8, given the spread seen; NaN where nothing differs.
    """

    difference: Difference
    p: float
    detectable: float
    tasks: int


def summarise(outcomes: Array, strata: Sequence[str], seed: int) -> Summary:
    """Describes one cell. strata: the task type of each task. seed: of the stream of the resampling."""
    s, e, t = outcomes.shape
    low, high = _interval((outcomes,), strata, seed, 0.0)
    return Summary(
        mean=float(outcomes.mean()),
        sd_evaluation=float(outcomes.mean(axis=2).std(axis=1, ddof=1).mean()) if e > 1 else float("nan"),
        sd_training=float(outcomes.mean(axis=(1, 2)).std(ddof=1)) if s > 1 else float("nan"),
        low=low,
        high=high,
        iqm=float(stats.trim_mean(outcomes.mean(axis=(0, 1)), 0.25)),
        tasks=t,
        evaluation_seeds=e,
        training_seeds=s,
    )


def difference(first: Array, second: Array, strata: Sequence[str], seed: int) -> Difference:
    """mean(first) − mean(second) over the same tasks in the same order (the numbers of seeds may differ)."""
    low, high = _interval((first, second), strata, seed, -1.0)
    return Difference(float(first.mean() - second.mean()), low, high)


def compare(first: Array, second: Array, strata: Sequence[str], seed: int, *keys: int | str) -> Comparison:
    """The difference of two cells on the same tasks, and whether it could be chance.

    (seed, keys): the stream of the permutations.
    """
    a, b = first.mean(axis=(0, 1)), second.mean(axis=(0, 1))
    found, error = difference(first, second, strata, seed), _standard_error((first, second), strata)
    p = 1.0
    if len(a) > 1:
        test = stats.permutation_test(
            (a, b),
            lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=RESAMPLES - 1,
            batch=1000,
            rng=stream(seed, "bootstrap", "permutation", *keys),
        )
        p = float(test.pvalue)
    if not _several((first, second)):
        return Comparison(found, p, detectable_difference(*_plain_error(a - b)), len(a))
    if error.size:
        p = max(p, 2 * float(stats.t.sf(abs(found.effect) / error.size, error.freedom)))
    return Comparison(found, p, detectable_difference(error.size, error.freedom), len(a))


def detectable_difference(error: float, freedom: float, level: float = 0.05, power: float = 0.8) -> float:
    """The difference that a two-sided t-test with this standard error and these degrees of freedom finds with `power`
    at `level`; NaN without an error or a degree of freedom."""
    from statsmodels.stats.power import TTestPower

    if not error > 0 or not freedom > 0:
        return float("nan")
    nobs = freedom + 1
    effect = TTestPower().solve_power(nobs=nobs, alpha=level, power=power, alternative="two-sided")
    return float(np.squeeze(effect)) * math.sqrt(nobs) * error


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-corrected p-values of a family of tests."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(list(p_values), method="holm")[1]] if len(p_values) else []


@lru_cache(maxsize=16)
def _task_counts(strata: tuple[str, ...], seed: int) -> Array:
    """How often each task is drawn in each replicate: (RESAMPLES, T), tasks of a type drawn among themselves.

    The same for every cell of a panel, so that differences between cells carry no resampling noise of their own.
    """
    labels = np.asarray(strata)
    counts = np.empty((RESAMPLES, len(labels)))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        draw = stream(seed, "bootstrap", "tasks", str(label))
        counts[:, members] = draw.multinomial(len(members), np.full(len(members), 1 / len(members)), size=RESAMPLES)
    return counts


def _several(cells: Sequence[Array]) -> bool:
    """Whether a cell has several training seeds, so that it is known how far another run would end from these."""
    return any(cell.shape[0] > 1 for cell in cells)


def _interval(cells: Sequence[Array], strata: Sequence[str], seed: int, least: float) -> tuple[float, float]:
    """95 % interval of the mean of one cell, or of the first minus the second; between `least` and 1.

    With one training seed percentiles of a bootstrap over tasks: a drawn task brings its outcomes under all evaluation
    seeds, which are a fixed stratum. With several, Student's interval of `_standard_error`, which holds for another
    training run, too: percentiles of two or three seeds drawn again would be far too narrow.
    """
    by_task = _by_task(cells)
    if not _several(cells):
        replicates = _task_counts(tuple(strata), seed) @ by_task / len(by_task)
        low, high = np.quantile(replicates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    else:
        error = _standard_error(cells, strata)
        half = error.size * float(stats.t.ppf((1 + CONFIDENCE) / 2, error.freedom)) if error.size else 0.0
        low, high = max(least, by_task.mean() - half), min(1.0, by_task.mean() + half)
    return float(low), float(high)


def _by_task(cells: Sequence[Array]) -> Array:
    """Each task's mean over all seeds, of the first cell minus that of the second, if there is one."""
    means = [cell.mean(axis=(0, 1)) for cell in cells]
    return means[0] - means[1] if len(means) > 1 else means[0]


class _Error(NamedTuple):
    """A standard error and its degrees of freedom."""

    size: float
    freedom: float


def _standard_error(cells: Sequence[Array], strata: Sequence[str]) -> _Error:
    """Of the mean or the paired difference over tasks (stratified) and over each cell's training seeds.

    The variances of the tasks and of each cell's seeds are independent and add up; the degrees of freedom are those of
    Welch and Satterthwaite.
    """
    by_task, labels = _by_task(cells), np.asarray(strata)
    groups = [by_task[labels == label] for label in np.unique(labels)]
    tasks = sum(len(g) * g.var(ddof=1) for g in groups if len(g) > 1) / len(by_task) ** 2
    parts = [(tasks, len(by_task) - len(groups))]
    parts += [(c.mean(axis=(1, 2)).var(ddof=1) / len(c), len(c) - 1) for c in cells if len(c) > 1]
    parts = [(float(variance), n) for variance, n in parts if variance > 0]
    total = sum(variance for variance, _ in parts)
    freedom = total**2 / sum(variance**2 / n for variance, n in parts) if parts else math.nan
    return _Error(math.sqrt(total), freedom)


def _plain_error(differences: Array) -> _Error:
    """Of the mean of the tasks' differences."""
    n = len(differences)
    return _Error(float(np.std(differences, ddof=1)) / math.sqrt(n) if n > 1 else 0.0, n - 1)
