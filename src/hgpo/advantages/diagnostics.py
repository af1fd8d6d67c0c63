"""Do compared steps truly share their context? What the groups of a batch look like, and how far each estimator is from
the oracle: the advantage among steps with equal full history (arXiv 2602.22817, Figure 2).

For an estimator A and the oracle A*, over the oracle steps (those whose full history another step shares), with D = A -
A* and D_g its mean in oracle group g:

    bias^2 = mean(D_g^2),   variance = mean((D - D_g)^2),   mean(D^2) = bias^2 + variance.

A* has mean 0 in each oracle group, so D_g is the credit that A gives to having come to a context rather than to the
action taken in it.

Level k does not exist in a trajectory's first k steps: it counts as an advantage of 0, which has no bias and all of the
variance; and level t of step t is the oracle itself. So the same is measured for the later steps alone, t > K, in which
every level exists and none knows the full history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from hgpo.advantages.columns import Steps
from hgpo.advantages.episode import episode_advantage
from hgpo.advantages.groups import full_history_groups
from hgpo.advantages.hgpo import HgpoOptions, LevelAdvantage, aggregate, level_advantages
from hgpo.advantages.registry import check_options
from hgpo.advantages.returns import step_returns
from hgpo.advantages.similarity import merged_states
from hgpo.advantages.statistics import ascending, describe, normalise


@dataclass(frozen=True)
class Diagnosis:
    """`rows`: a tidy table, each row with the keys of `ROW`, unused ones None. `metrics`: its scalars by flat name."""

    rows: list[dict[str, Any]]

    @property
    def metrics(self) -> dict[str, float]:
        """Everything but the histogram, as `groups/<quantity>/<level or estimator>`; undefined figures are absent."""
        names = {}
        for row in self.rows:
            if row["size"] is None:
                at = [row["estimator"], row["level"], row["other_level"]]
                names["/".join(["groups", row["quantity"], *(str(part) for part in at if part is not None)])] = row[
                    "value"
                ]
        return names


ROW = {"quantity": None, "estimator": None, "level": None, "other_level": None, "size": None, "value": None}


def diagnose(columns: Mapping[str, Any], **options: Any) -> Diagnosis:
    """Diagnostics of a batch; `columns` as for `compute`, `options` those of `hgpo`.

    Per level k: `groups` (with two steps or more), `shared_share` (steps in such a group), `zero_share` (steps whose
    A_k is 0 or that have none), `mean_size`, and `group_size` (number of groups of each size, 1 included). Per pair of
    levels: `rank_correlation` (Spearman, over the steps that have both). `oracle_share`, and for each level
    (`level_0`, ...), GiGPO's step part and whole, GRPO, and HGPO under each kind of weights: `bias`, `variance`,
    `mean_absolute_error`; and the same four for the steps later than `history` alone (`later_...`).
    """
    chosen: HgpoOptions = check_options("hgpo", options)
    steps = Steps(columns)
    steps.require("state", "the diagnostics")
    returns = step_returns(steps, chosen.gamma, chosen.invalid_penalty)
    levels = list(level_advantages(steps, returns, chosen))
    rows = [*_group_rows(steps, levels), *_correlation_rows(steps, levels)]
    rows += _oracle_rows(steps, returns, levels, chosen)
    return Diagnosis([ROW | row for row in rows])


def _group_rows(steps: Steps, levels: list[LevelAdvantage]) -> Iterator[dict[str, Any]]:
    n = max(len(steps), 1)
    for found in levels:
        k, size = found.level.k, found.level.size
        shared = len(found.level.steps)
        alone = int(np.count_nonzero(steps.time >= k)) - shared
        figures = {
            "groups": found.level.count,
            "shared_share": shared / n,
            "zero_share": (len(steps) - int(np.count_nonzero(found.advantage))) / n,
            "mean_size": shared / max(found.level.count, 1),
        }
        for quantity, value in figures.items():
            yield {"quantity": quantity, "level": k, "value": float(value)}
        counts = np.bincount(size, minlength=2)
        counts[1] = alone
        for s in np.flatnonzero(counts):
            yield {"quantity": "group_size", "level": k, "size": int(s), "value": float(counts[s])}


def _correlation_rows(steps: Steps, levels: list[LevelAdvantage]) -> Iterator[dict[str, Any]]:
    for low, high in combinations(levels, 2):  # the steps of the higher level are among those of the lower
        wide = np.zeros(len(steps))
        wide[low.level.steps] = low.advantage
        a, b = _ranks(wide[high.level.steps]), _ranks(high.advantage)
        spread = np.sqrt(_mean(a * a) * _mean(b * b))
        if spread > 0:
            yield {
                "quantity": "rank_correlation",
                "level": low.level.k,
                "other_level": high.level.k,
                "value": float(_mean(a * b) / spread),
            }


def _oracle_rows(
    steps: Steps, returns: np.ndarray, levels: list[LevelAdvantage], options: HgpoOptions
) -> Iterator[dict[str, Any]]:
    codes, _ = full_history_groups(steps, merged_states(steps, options.similarity), options.context)
    estimates = dict(_estimates(steps, returns, levels, options))
    everywhere = ascending(returns)
    everywhere = everywhere[codes[everywhere] >= 0]
    later = everywhere[steps.time[everywhere] > options.history]  # whole oracle groups: their steps have one time
    for prefix, order in (("", everywhere), ("later_", later)):
        yield {"quantity": f"{prefix}oracle_share", "value": len(order) / max(len(steps), 1)}
        if not len(order):
            continue
        values = returns[order]
        found, groups = np.unique(codes[order], return_inverse=True)
        oracle = normalise(values, groups, describe(values, groups, len(found), ddof=0), options.normalisation)
        size = np.bincount(groups)
        for name, advantage in estimates.items():
            error = advantage[order] - oracle
            canonical = np.lexsort((error, groups))  # sums within a group in ascending order, whatever that of the rows
            error, group = error[canonical], groups[canonical]
            mean = (np.bincount(group, weights=error) / size)[group]
            figures = {
                "bias": np.sqrt(_mean(mean**2)),
                "variance": _mean((error - mean) ** 2),
                "mean_absolute_error": _mean(np.abs(error)),
            }
            for quantity, value in figures.items():
                yield {"quantity": prefix + quantity, "estimator": name, "value": float(value)}


def _estimates(
    steps: Steps, returns: np.ndarray, levels: list[LevelAdvantage], options: HgpoOptions
) -> Iterator[tuple[str, np.ndarray]]:
    """Each estimator's advantage, shape (n,), from the levels already at hand."""
    for found in levels:
        level = np.zeros(len(steps))
        level[found.level.steps] = found.advantage
        yield f"level_{found.level.k}", level
    same_state, step = levels[0].level, np.zeros(len(steps))
    values = returns[same_state.steps]
    groups = describe(values, same_state.codes, same_state.count, ddof=1)
    step[same_state.steps] = normalise(values, same_state.codes, groups, options.normalisation)
    episode = episode_advantage(steps, options.invalid_penalty, options.normalisation)
    yield "gigpo_step", step
    yield "gigpo", episode + step
    yield "grpo", episode
    for weights in ("paper", "upstream", "inverse_variance"):
        yield f"hgpo_{weights}", aggregate(steps, returns, levels, dataclasses.replace(options, weights=weights))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks around 0, ties sharing their mean rank."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2 - len(values) / 2)[codes]


def _mean(values: np.ndarray) -> float:
    """Mean, summed in ascending order so that the order of the rows does not show; 0 of nothing."""
    return float(np.sort(values).sum() / max(len(values), 1))
