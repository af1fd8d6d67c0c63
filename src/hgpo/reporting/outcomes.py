"""Figures over the evaluation: success by task type, in- against out-of-domain; and where training time goes."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from hgpo.reporting.breakdowns import SHORT, type_outcomes
from hgpo.reporting.collect import NotMeasured, Results
from hgpo.reporting.curves import one_legend
from hgpo.reporting.figure import colours, markers
from hgpo.reporting.results import results_table
from hgpo.reporting.training import PHASES, cost_table

HATCHES = ["", "///", "...", "xxx", "\\\\\\", "++", "oo"]


def task_types(results: Results) -> Figure:
    """Success by task type with 95 % intervals: a row for each environment, model and K, a column for each split."""
    data = pd.concat([type_outcomes(results, e) for e in sorted(set(results.frame["environment"]))])
    data = data[data["type"] != "all"].assign(type=lambda d: d["type"].map(lambda kind: SHORT.get(kind, kind)))
    colour, marker = colours(results.config.matrix.methods), markers(data["method"])
    rows = sorted(set(zip(data["environment"], data["model"], data["history"], strict=True)))
    columns = max(data.groupby("environment")["split"].nunique())
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(4.6 * columns + 1.2, 2.4 * len(rows) + 0.3), squeeze=False, sharey=True
    )
    for row, (environment, model, history) in enumerate(rows):
        chosen = (data["environment"] == environment) & (data["model"] == model) & (data["history"] == history)
        splits = list(data[chosen]["split"].unique())
        for axis in axes[row][len(splits) :]:
            axis.set_visible(False)
        for column, split in enumerate(splits):
            axis = axes[row][column]
            _points(data[chosen & (data["split"] == split)], colour, marker, axis)
            axis.set(title=f"{environment}, {split}, K = {history}", ylabel="success (%)", ylim=(-4, 104))
    one_legend(figure, axes)
    return figure


def domains(results: Results) -> Figure:
    """Success in domain against out of domain, for each model, method and K; points with 95 % intervals."""
    data = results_table(results).data
    data = data[data["split"].isin(["in_domain", "out_of_domain"])]
    if data["split"].nunique() < 2:
        raise NotMeasured("no environment was evaluated both in and out of domain")
    colour, marker = colours(results.config.matrix.methods), markers(data["method"])
    low, high = 100 * data["low"].min() - 4, 100 * data["high"].max() + 4
    panels = sorted(set(zip(data["environment"], data["model"], data["history"], strict=True)))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(2.9 * len(panels) + 0.6, 3.3), squeeze=False, sharex=True, sharey=True
    )
    for axis, (environment, model, history) in zip(axes[0], panels, strict=True):
        chosen = data[(data["environment"] == environment) & (data["model"] == model) & (data["history"] == history)]
        axis.axline((0, 0), slope=1, color="0.6", linewidth=1, linestyle="--", zorder=0)
        for method in marker:
            both = chosen[chosen["method"] == method].set_index("split")
            if len(both) == 2:
                inside, outside = both.loc["in_domain"], both.loc["out_of_domain"]
                axis.errorbar(
                    100 * inside["success"],
                    100 * outside["success"],
                    xerr=_arms(inside),
                    yerr=_arms(outside),
                    fmt=marker[method],
                    color=colour[method],
                    label=method,
                    capsize=2,
                    linewidth=1,
                )
        axis.set(title=f"{environment}, {model}, K = {history}", xlabel="success in domain (%)")
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes[0][0].set_ylabel("success out of domain (%)")
    one_legend(figure, axes)
    return figure


def time_breakdown(results: Results) -> Figure:
    """Mean seconds of a training iteration by phase, stacked, for each environment, method and K."""
    data = cost_table(results).data
    labels = [f"{method}, K={k}" for method, k in zip(data["method"], data["history"], strict=True)]
    rows = {label: row for row, label in enumerate(dict.fromkeys(labels))}
    data = data.assign(row=[rows[label] for label in labels])
    data["other"] = data["total"] - data[PHASES].fillna(0).sum(axis=1)
    panels = sorted(set(zip(data["environment"], data["model"], strict=True)))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.6 * len(panels) + 1.2, 0.34 * len(rows) + 1.2), squeeze=False, sharey=True
    )
    for axis, (environment, model) in zip(axes[0], panels, strict=True):
        here = data[(data["environment"] == environment) & (data["model"] == model)]
        left = np.zeros(len(here))
        parts = [*PHASES, "other"]
        for part, colour, hatch in zip(parts, sns.color_palette(n_colors=len(parts)), HATCHES, strict=False):
            width = here[part].fillna(0).to_numpy()
            name = "estimator" if part == "advantages" else part.replace("_", " ")
            axis.barh(here["row"], width, left=left, color=colour, hatch=hatch, edgecolor="white", label=name)
            left += width
        for y, total, share in zip(here["row"], here["total"], here["advantages_share"], strict=True):
            axis.annotate(f" {100 * share:.2g} %", (total, y), va="center", fontsize="small")
        axis.margins(x=0.16)
        axis.grid(visible=False, axis="y")
        axis.set(title=f"{environment}, {model}", xlabel="seconds per iteration (right: estimator's share)")
    axes[0][0].set_yticks(range(len(rows)), rows)
    axes[0][0].invert_yaxis()
    one_legend(figure, axes)
    return figure


def _points(data: pd.DataFrame, colour: dict[str, Any], marker: dict[str, str], axis: plt.Axes) -> None:
    """Success with intervals over the task types, methods side by side."""
    kinds = list(dict.fromkeys(data["type"]))
    kinds = [k for k in SHORT.values() if k in kinds] + sorted(set(kinds) - set(SHORT.values()))
    methods = list(dict.fromkeys(data["method"]))
    for number, method in enumerate(methods):
        own = data[data["method"] == method].set_index("type").reindex(kinds)
        shift = (number - (len(methods) - 1) / 2) * 0.7 / len(methods)
        axis.errorbar(
            np.arange(len(kinds)) + shift,
            100 * own["success"],
            yerr=100 * np.array([own["success"] - own["low"], own["high"] - own["success"]]),
            fmt=marker[method],
            color=colour[method],
            label=method,
            capsize=2,
            linewidth=1,
            markersize=4.5,
        )
    axis.set_xticks(np.arange(len(kinds)), kinds)
    axis.grid(visible=False, axis="x")


def _arms(row: pd.Series) -> np.ndarray:
    """Lengths of the interval below and above the mean, shape (2, 1), in percent."""
    return 100 * np.array([[row["success"] - row["low"]], [row["high"] - row["success"]]])
