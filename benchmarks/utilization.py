"""Draws how busy the GPUs were in iterations that `iteration.py` timed.

    python benchmarks/utilization.py benchmarks/results/h200x2-overlap-utilization.csv docs/images/overlap.png \
        "iteration 2" "iteration 3, overlap, recompute"

The file has a line a second: time, phase ("ITERATION: PHASE"), and each GPU's utilization in percent, as nvidia-smi
reports it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

PHASES = {"rollout": "rollout", "scores": "", "reference_log_probs": "reference", "update": "update"}


def draw(table: pd.DataFrame, iterations: list[str], path: Path) -> None:
    sns.set_theme(style="ticks", context="paper")
    figure, panels = plt.subplots(len(iterations), 1, figsize=(7, 1.9 * len(iterations)), sharex=True, squeeze=False)
    colours = dict(zip(PHASES, sns.color_palette("pastel"), strict=False))
    for axes, iteration in zip(panels[:, 0], iterations, strict=True):
        own = table[table.iteration == iteration].reset_index(drop=True)
        for phase, rows in own.groupby("step", sort=False):
            axes.axvspan(rows.index[0], rows.index[-1] + 1, color=colours.get(phase, "white"), linewidth=0)
            middle = (rows.index[0] + rows.index[-1] + 1) / 2
            axes.text(middle, 109, PHASES.get(phase, ""), ha="center", va="center", fontsize=8)
        axes.step(own.index + 0.5, own.busy.rolling(3, center=True, min_periods=1).mean(), color="0.2", where="mid")
        axes.set(ylim=(0, 120), yticks=[0, 50, 100], ylabel="GPUs at work, %", xlim=(0, None))
        axes.set_title(iteration, loc="left", fontsize=9)
    panels[-1, 0].set_xlabel("seconds")
    sns.despine(figure)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    source, path, *iterations = sys.argv[1:]
    table = pd.read_csv(source)
    table[["iteration", "step"]] = table.phase.str.split(": ", expand=True)
    table["busy"] = table.filter(like="_percent").mean(axis=1)
    draw(table, iterations or list(table.iteration.unique()), Path(path))


if __name__ == "__main__":
    main()
