from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hgpo.evaluation.statistics import compare, detectable_difference, difference, holm, summarise


def cells(shape, chance, seed=0):
    return (np.random.default_rng(seed).random(shape) < chance).astype(float)


def kinds(count, types=3):
    return [f"type{i % types}" for i in range(count)]


def test_mean_and_deviations_are_the_textbook_ones():
    won = cells((2, 3, 40), 0.6)
    found = summarise(won, kinds(40), 0)
    assert found.mean == pytest.approx(won.mean())
    by_seed = won.mean(axis=2)
    assert found.sd_evaluation == pytest.approx((np.std(by_seed[0], ddof=1) + np.std(by_seed[1], ddof=1)) / 2)
    assert found.sd_training == pytest.approx(np.std([won[0].mean(), won[1].mean()], ddof=1))
    assert (found.training_seeds, found.evaluation_seeds, found.tasks) == won.shape


def test_one_seed_has_no_deviation():
    found = summarise(cells((1, 1, 10), 0.5), kinds(10), 0)
    assert np.isnan(found.sd_evaluation) and np.isnan(found.sd_training)


def test_interquartile_mean_is_over_tasks():
    won = np.zeros((1, 1, 8))
    won[..., :4] = 1.0
    assert summarise(won, kinds(8), 0).iqm == pytest.approx(0.5)
    won[..., :7] = 1.0  # the quarter with the one failure is cut off
    assert summarise(won, kinds(8), 0).iqm == pytest.approx(1.0)


def test_interval_agrees_with_the_normal_approximation_of_a_stratified_mean():
    won = cells((1, 1, 600), 0.7)
    types = kinds(600)
    labels = np.array(types)
    spread = sum((labels == k).mean() ** 2 * won[0, 0, labels == k].var() / (labels == k).sum() for k in set(types))
    found = summarise(won, types, 0)
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.sqrt(spread), rel=0.06)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    hits = 0
    for trial in range(200):
        found = summarise(cells((1, 3, 120), 0.6, seed=trial), kinds(120), trial)
        hits += found.low <= 0.6 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_seeds_of_the_same_tasks_are_not_counted_as_more_tasks():
    one = cells((1, 1, 90), 0.5)
    single = summarise(one, kinds(90), 0)
    thrice = summarise(np.repeat(one, 3, axis=1), kinds(90), 0)
    assert (single.low, single.high) == (thrice.low, thrice.high)


def test_training_seeds_that_disagree_widen_the_interval():
    same, tasks = cells((1, 3, 90), 0.5), kinds(90)
    apart = np.concatenate([np.ones((1, 3, 90)), np.zeros((1, 3, 90)), same])
    wide, narrow = summarise(apart, tasks, 0), summarise(np.concatenate([same] * 3), tasks, 0)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_strata_keep_their_size():
    won = np.zeros((1, 1, 20))
    won[..., 10:] = 1.0
    found = summarise(won, ["lost"] * 10 + ["won"] * 10, 0)
    assert found.low == found.high == 0.5


def test_the_same_stream_gives_the_same_interval_and_another_another():
    won = cells((1, 3, 50), 0.5)
    first, again, other = (summarise(won, kinds(50), seed) for seed in (0, 0, 1))
    assert (first.low, first.high) == (again.low, again.high) != (other.low, other.high)


def trained(generator, seeds, spread, chances):
    """Outcomes of policies whose training ended better or worse by chance, on tasks of these chances."""
    shifted = np.clip(chances + generator.normal(0, spread, (seeds, 1, 1)), 0, 1)
    return (generator.random((seeds, 3, len(chances))) < shifted).astype(float)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_with_several_training_seeds_interval_and_test_hold_for_other_training_runs(seeds):
    """Two methods that are the same but for the chance of training differ significantly in one case of twenty."""
    generator, covered, found = np.random.default_rng(seeds), [], []
    for _ in range(100):
        chances = generator.beta(2, 1.2, 200).clip(0.15, 0.85)
        found.append(compare(*(trained(generator, seeds, 0.04, chances) for _ in "ab"), kinds(200), 0))
        covered.append(found[-1].difference.low <= 0 <= found[-1].difference.high)
    assert np.mean([c.p < 0.05 for c in found]) <= 0.1
    assert np.mean(covered) >= 0.9


def test_an_interval_of_several_training_seeds_is_students():
    won = np.stack([np.full((1, 60), 0.5), np.full((1, 60), 0.6), np.full((1, 60), 0.7)])
    found = summarise(won, kinds(60), 0)  # tasks do not differ, so that only the seeds count
    low, high = stats.t.interval(0.95, 2, loc=0.6, scale=0.1 / np.sqrt(3))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_an_interval_of_several_training_seeds_stays_within_what_can_be():
    won = np.concatenate([np.ones((1, 3, 30)), np.zeros((1, 3, 30))])
    found = summarise(won, kinds(30), 0)
    assert (found.low, found.high) == (0, 1)
    other = difference(won, np.zeros((1, 3, 30)), kinds(30), 0)
    assert (other.low, other.high) == (-1, 1)


def test_one_task_shows_nothing():
    found = compare(np.ones((1, 1, 1)), np.zeros((1, 1, 1)), ["type"], 0)
    assert found.p == 1 and np.isnan(found.detectable)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 30))
def test_a_difference_turns_round_with_its_sides(seed, tasks):
    a, b = cells((1, 2, tasks), 0.7, seed), cells((1, 2, tasks), 0.4, seed + 1)
    forth, back = difference(a, b, kinds(tasks), 0), difference(b, a, kinds(tasks), 0)
    assert forth.effect == pytest.approx(-back.effect)
    assert (forth.low, forth.high) == (pytest.approx(-back.high), pytest.approx(-back.low))
    assert forth.low - 1e-12 <= forth.effect <= forth.high + 1e-12


def test_permutation_test_is_exact_on_few_tasks():
    a, b = np.ones((1, 1, 6)), np.zeros((1, 1, 6))
    found = compare(a, b, kinds(6), 0)
    assert found.p == pytest.approx(2 / 2**6)  # only all signs equal are as extreme
    assert found.difference.effect == 1.0


def test_permutation_test_agrees_with_the_sign_test_where_they_are_the_same():
    a, b = np.zeros((1, 1, 40)), np.zeros((1, 1, 40))
    a[..., :14] = 1.0
    b[..., 14:18] = 1.0
    assert compare(a, b, kinds(40), 0).p == pytest.approx(stats.binomtest(14, 18).pvalue, abs=0.01)


def test_equal_cells_differ_by_nothing():
    won = cells((1, 3, 30), 0.5)
    found = compare(won, won, kinds(30), 0)
    assert (found.difference.effect, found.difference.low, found.difference.high, found.p) == (0, 0, 0, 1)
    assert np.isnan(found.detectable)


def test_no_difference_is_seldom_found_where_there_is_none():
    p = [compare(cells((1, 1, 60), 0.5, 2 * i), cells((1, 1, 60), 0.5, 2 * i + 1), kinds(60), i).p for i in range(60)]
    assert np.mean(np.array(p) < 0.05) <= 0.15


def test_detectable_difference_is_found_with_power_080():
    generator = np.random.default_rng(0)
    spread = generator.normal(0, 0.4, 140)
    size = detectable_difference(np.std(spread, ddof=1) / np.sqrt(140), 139)
    deviation = np.std(spread, ddof=1)
    found = [stats.ttest_1samp(generator.normal(size, deviation, 140), 0).pvalue < 0.05 for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.05)


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
