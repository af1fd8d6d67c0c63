"""Figures over training: success, and the other curves of metrics.jsonl."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from hgpo.reporting.collect import NotMeasured, Results
from hgpo.reporting.figure import DASHES, colours, seed_range


def long_metrics(results: Results, columns: list[str]) -> pd.DataFrame:
    """The given metrics of all runs: columns model, environment, method, K, seed, iteration, and the metrics."""
    frames = []
    for run, metrics in results.metrics.items():
        frame = metrics.reindex(columns=["iteration", *columns]).assign(
            model=run.model, environment=run.environment, method=run.method, K=run.history, seed=run.seed
        )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def training_curves(results: Results) -> Figure:
    """Success of the rollouts (above) and of the validation tasks (below) over the iterations, for each environment.

    Lines are means over training seeds, bands reach from the lowest to the highest of them. Rollout success is smoothed
    over iterations.
    """
    data = long_metrics(results, ["success", "validation/success"])
    if data.empty or not data["success"].notna().any():
        raise NotMeasured("no run has training metrics")
    measured = ["success"] + (["validation/success"] if data["validation/success"].notna().any() else [])
    panels = sorted(set(zip(data["model"], data["environment"], strict=True)))
    figure, axes = plt.subplots(
        len(measured),
        len(panels),
        figsize=(4.2 * len(panels) + 1.2, 2.6 * len(measured) + 0.3),
        squeeze=False,
        sharex="col",
        sharey="row",
    )
    for column, (model, environment) in enumerate(panels):
        here = data[(data["model"] == model) & (data["environment"] == environment)]
        for row, metric in enumerate(measured):
            axis = axes[row][column]
            curve(smoothed(here, metric, row == 0), metric, results, axis)
            axis.set_xlabel("training iteration")
            axis.locator_params(axis="x", integer=True)
            axis.set_ylabel(("rollout" if row == 0 else "validation") + " success (%)")
        axes[0][column].set_title(f"{environment}, {model}")
    one_legend(figure, axes)
    return figure


def smoothed(data: pd.DataFrame, metric: str, smooth: bool) -> pd.DataFrame:
    """The rows that have the metric, in percent; over a tenth of the iterations as moving average if `smooth`."""
    rows = data.dropna(subset=[metric]).sort_values("iteration")
    window = max(1, round(rows["iteration"].nunique() / 10)) if smooth else 1
    runs = rows.groupby(["method", "K", "seed"])[metric]
    return rows.assign(**{metric: 100 * runs.transform(lambda v: v.rolling(window, min_periods=1).mean())})


def curve(data: pd.DataFrame, metric: str, results: Results, axis: plt.Axes) -> None:
    """Lines over iterations: colour for the method, dash for K (or, if there is one K, for the method as well), band
    for the range of the training seeds. They mean the same in every panel: whatever ran anywhere counts."""
    methods = [m for m in results.config.matrix.methods if any(run.method == m for run in results.metrics)]
    lengths = sorted({run.history for run in results.metrics})
    styles = lengths if len(lengths) > 1 else methods
    sns.lineplot(
        data=data,
        x="iteration",
        y=metric,
        hue="method",
        hue_order=methods,
        palette=dict(colours(results.config.matrix.methods)),
        style="K" if len(lengths) > 1 else "method",
        style_order=styles,
        dashes=DASHES[: len(styles)] if len(styles) <= len(DASHES) else True,
        errorbar=seed_range,
        ax=axis,
    )


def one_legend(figure: Figure, axes: np.ndarray, title: str | None = None) -> None:
    """Puts one legend of what all panels show beside the figure and removes theirs."""
    shown: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
        if axis.get_legend() is not None:
            axis.get_legend().remove()
    figure.tight_layout()
    figure.legend(shown.values(), shown.keys(), loc="center left", bbox_to_anchor=(1.0, 0.5), title=title)
