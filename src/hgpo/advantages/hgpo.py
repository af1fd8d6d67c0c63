"""HGPO: each step is compared within a hierarchy of groups of ever more equal history.

A = sum_k w_k A_k / sum_k w_k,  A_k = (R - mean(G_k)) / (std(G_k) + 1e-6) or R - mean(G_k),  k = 0..K,
G_k the steps of the task with equal k-context, R the discounted return, population standard deviation.

Source: arXiv 2602.22817, Section 4; upstream `core_hgpo.py`. Weights: `paper` (k+1)^alpha; `upstream` (k+2)^alpha;
`inverse_variance` see `VarianceWeights`. Aggregation: `paper` divides by the weights of all K+1 levels, a level
without a group counting as 0; `upstream` leaves out the levels whose advantage is exactly 0 for the step and adds
1e-6 to the sum of the weights. `base_group` adds the episode advantage (per step) as one more level of weight 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hgpo.advantages.columns import Steps
from hgpo.advantages.episode import episode_advantage
from hgpo.advantages.groups import Level, context_groups
from hgpo.advantages.options import ContextOptions, option
from hgpo.advantages.registry import estimator
from hgpo.advantages.returns import step_returns
from hgpo.advantages.similarity import merged_states
from hgpo.advantages.statistics import EPSILON, LARGEST, Groups, ascending, describe, normalise
from hgpo.errors import ConfigError

OFFSET = {"paper": 1.0, "upstream": 2.0}


@dataclass(frozen=True, kw_only=True)
class HgpoOptions(ContextOptions):
    history: int = option(2, "Number K of earlier steps in the largest context.", minimum=0)
    alpha: float = option(1.0, "Exponent of the level weights.", minimum=-100, maximum=100)
    weights: str = option(
        "paper", "Level weights: (k+1)^alpha, (k+2)^alpha, or by variance.", ("paper", "upstream", "inverse_variance")
    )
    aggregation: str = option(
        "auto",
        "Keep levels with advantage 0 in the weights (paper) or not (upstream); auto: as the weights.",
        ("auto", "paper", "upstream"),
    )
    base_group: bool = option(False, "The episode advantage joins as one more level.")
    shrinkage: float = option(2.0, "inverse_variance: steps that the variance one level up counts for.", minimum=1e-3)
    context: str = option("states", "What a context is made of.", ("states", "states_and_actions"))

    def __post_init__(self) -> None:
        if abs(self.alpha) * math.log10(self.history + 2) > 300:
            raise ConfigError(
                f"alpha: {self.alpha} is too large for history {self.history}: the level weights leave float64"
            )


@dataclass(frozen=True)
class LevelAdvantage:
    """The groups of one level with their statistics, and the advantage of each of `level.steps`, shape (m,)."""

    level: Level
    groups: Groups
    advantage: np.ndarray


@estimator("hgpo", HgpoOptions, columns=("state",))
def hgpo(steps: Steps, options: HgpoOptions) -> np.ndarray:
    """Advantage of each step, shape (n,), float64."""
    returns = step_returns(steps, options.gamma, options.invalid_penalty)
    found = aggregate(steps, returns, level_advantages(steps, returns, options), options)
    return np.clip(found, -LARGEST, LARGEST)  # the last bit of an average of the largest numbers


def level_advantages(steps: Steps, returns: np.ndarray, options: HgpoOptions) -> Iterator[LevelAdvantage]:
    """A_k for k = 0..K; groups below `min_group_size` have advantage 0."""
    states = merged_states(steps, options.similarity)
    if options.context == "states_and_actions":
        steps.require("action", "context states_and_actions")
    for level in context_groups(steps, states, options.history, options.context, ascending(returns)):
        values = returns[level.steps]
        groups = describe(values, level.codes, level.count, ddof=0)
        advantage = normalise(values, level.codes, groups, options.normalisation)
        if options.min_group_size > 2:
            advantage[level.size[level.codes] < options.min_group_size] = 0.0
        yield LevelAdvantage(level, groups, advantage)


def aggregate(steps: Steps, returns: np.ndarray, levels: Iterable[LevelAdvantage], options: HgpoOptions) -> np.ndarray:
    """sum_k w_k A_k / sum_k w_k for each step, shape (n,), float64."""
    drop_zeros = options.aggregation == "upstream" or (options.aggregation == "auto" and options.weights == "upstream")
    weigh = VarianceWeights(steps, returns, options) if options.weights == "inverse_variance" else None
    average, weight = np.zeros(len(steps)), np.zeros(len(steps))
    if options.base_group:
        average += episode_advantage(steps, options.invalid_penalty, options.normalisation)
        weight += (average != 0) if drop_zeros else 1.0
    for found in levels:  # a running average, which cannot overflow
        chosen, advantage = found.level.steps, found.advantage
        w = weigh(found) if weigh else np.full(len(chosen), depth_weight(found.level.k, options))
        if drop_zeros:
            w[advantage == 0] = 0.0
        weight[chosen] += w
        share = np.divide(w, weight[chosen], out=np.zeros(len(chosen)), where=w > 0)
        average[chosen] = (1 - share) * average[chosen] + share * advantage
    if drop_zeros:
        return average * (weight / (weight + 1e-6))
    if weigh:
        return average
    return average * (weight / (options.base_group + sum(depth_weight(k, options) for k in range(options.history + 1))))


def depth_weight(k: int, options: HgpoOptions) -> float:
    """(k+1)^alpha of the paper or (k+2)^alpha of upstream."""
    return (k + OFFSET[options.weights]) ** options.alpha


class VarianceWeights:
    """Weighs A_k by 1 / Var(A_k). The baseline of a group of n steps, its mean, has variance s^2 / n, so

        w_k = n (d / s)^2,   s^2 = (nu s_parent^2 + (n - 1) s_group^2) / (nu + n - 1),

    with d the divisor of A_k: std + 1e-6, or, under `mean_norm`, a constant of the task (its std, so that weights have
    no unit). The variance of a small group is shrunk towards that of the group one level up, which counts as
    nu = `shrinkage` further steps (level 0: towards that of the task). d / s is held below 1e6.
    Inverse-variance weighting: Cochran, Biometrics 10 (1954); variances moderated towards a prior with nu degrees of
    freedom: Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004).
    """

    def __init__(self, steps: Steps, returns: np.ndarray, options: HgpoOptions) -> None:
        order = ascending(returns)
        tasks = describe(returns[order], steps.task[order], steps.n_tasks, ddof=1)
        self.options = options
        self.task = (tasks.std / tasks.scale)[steps.task]
        self.parent = self.task.copy()

    def __call__(self, found: LevelAdvantage) -> np.ndarray:
        """w_k of each step of the level, shape (m,); levels must come in order."""
        level, n, nu = found.level, found.level.size, self.options.shrinkage
        deviation = found.groups.std / found.groups.scale * np.sqrt(n / (n - 1))
        inherited = np.sqrt(nu / (nu + n - 1))[level.codes] * self.parent[level.steps]
        moderated = np.hypot(inherited, (np.sqrt((n - 1) / (nu + n - 1)) * deviation)[level.codes])
        self.parent[level.steps] = moderated
        if self.options.normalisation == "mean_std_norm":
            unit = (found.groups.std / found.groups.scale + EPSILON)[level.codes]
        else:
            unit = self.task[level.steps]
        with np.errstate(over="ignore"):
            relative = np.divide(unit, moderated, out=np.zeros(len(moderated)), where=moderated > 0)
        weight = n[level.codes] * np.minimum(relative, 1 / EPSILON) ** 2
        weight[n[level.codes] < self.options.min_group_size] = 0.0
        return weight
