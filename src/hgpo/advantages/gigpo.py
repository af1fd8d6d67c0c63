"""GiGPO: the episode advantage plus the advantage among steps taken in the same state.

A = A_episode + omega * A_step,  A_step = (R - mean(G_0)) / (std(G_0) + 1e-6),
G_0 the steps of the task in an equal (or similar) state, R the discounted return, unbiased variance;
A_step = 0 for a step alone in its group.

Source: Feng et al., Group-in-Group Policy Optimization, arXiv 2505.10978, Equations 3 to 8; upstream
`core_gigpo.py` (`episode_norm_reward`, `step_norm_reward`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpo.advantages.columns import Steps
from hgpo.advantages.episode import episode_advantage
from hgpo.advantages.groups import context_groups
from hgpo.advantages.options import ContextOptions, episode_score, option
from hgpo.advantages.registry import estimator
from hgpo.advantages.returns import step_returns
from hgpo.advantages.similarity import merged_states
from hgpo.advantages.statistics import LARGEST, ascending, describe, normalise


@dataclass(frozen=True, kw_only=True)
class GigpoOptions(ContextOptions):
    step_weight: float = option(1.0, "Weight omega of the step advantage.", minimum=0)
    episode_score: str = episode_score("per_step")


@estimator("gigpo", GigpoOptions, columns=("state",))
def gigpo(steps: Steps, options: GigpoOptions) -> np.ndarray:
    """Advantage of each step, shape (n,), float64."""
    returns = step_returns(steps, options.gamma, options.invalid_penalty)
    step = np.zeros(len(steps))
    states = merged_states(steps, options.similarity)
    for level in context_groups(steps, states, history=0, order=ascending(returns)):
        values = returns[level.steps]
        found = describe(values, level.codes, level.count, ddof=1)
        step[level.steps] = normalise(values, level.codes, found, options.normalisation)
        step[level.steps[level.size[level.codes] < options.min_group_size]] = 0.0
    episode = episode_advantage(steps, options.invalid_penalty, options.normalisation, options.episode_score)
    return np.clip(episode + options.step_weight * step, -LARGEST, LARGEST)
