"""RLOO: REINFORCE with the mean of the others as baseline.

A = S_i - 1/(N-1) sum_{j != i} S_j, S the undiscounted sum of rewards of the trajectory; a task with a single trajectory
has no others, its score stays raw. S_i bears the penalty of the step's own action, S_j of its trajectory's first row.

Source: Ahmadian et al., Back to Basics, arXiv 2402.14740, Section 3.2; Kool et al., Buy 4 REINFORCE Samples, 2019.
`per_step` leaves out one step among all steps of the task instead of one trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpo.advantages.columns import Steps
from hgpo.advantages.episode import score_statistics
from hgpo.advantages.options import ReturnOptions, episode_score
from hgpo.advantages.registry import estimator
from hgpo.advantages.returns import episode_scores
from hgpo.advantages.statistics import LARGEST, normalise


@dataclass(frozen=True, kw_only=True)
class RlooOptions(ReturnOptions):
    episode_score: str = episode_score("per_trajectory")


@estimator("rloo", RlooOptions)
def rloo(steps: Steps, options: RlooOptions) -> np.ndarray:
    """Advantage of each step, shape (n,), float64."""
    scores = episode_scores(steps, options.invalid_penalty)
    found = score_statistics(steps, scores, steps.task, steps.n_tasks, options.episode_score)
    counted = scores if options.episode_score == "per_step" else scores[steps.first[steps.trajectory]]
    others = found.size / np.maximum(found.size - 1, 1)  # S_i - mean of the others = N/(N-1) (S_i - mean of all)
    advantage = others[steps.task] * normalise(counted, steps.task, found, "mean_norm") + (scores - counted)
    return np.clip(advantage, -LARGEST, LARGEST)
