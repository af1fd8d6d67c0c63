"""Figures over the groups of training: bias against the oracle (the paper's Figure 2), and group sizes by level."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from hgpo.reporting.collect import NotMeasured, Results
from hgpo.reporting.curves import long_metrics, one_legend
from hgpo.reporting.figure import DASHES, MARKERS, colours, seed_range

ESTIMATORS = {
    "grpo": "GRPO",
    "gigpo": "GiGPO (whole)",
    "gigpo_step": "GiGPO (step part)",
    "hgpo_paper": "HGPO (weights of the paper)",
    "hgpo_upstream": "HGPO (weights of the code)",
    "hgpo_inverse_variance": "HGPO (inverse variance)",
}


def bias(results: Results) -> Figure:
    """Over training, all on the rollouts of the HGPO runs: root mean square bias of each estimator's advantage against
    the oracle's (above), and the share of steps that have an oracle group (below)."""
    prefix = "groups/bias/"
    columns = [prefix + name for name in ESTIMATORS]
    data = long_metrics(results, [*columns, "groups/oracle_share"])
    if data.empty or not data["groups/oracle_share"].notna().any():
        raise NotMeasured("no run has group diagnostics")
    data = _of_reference(results, data)
    panels = sorted(set(zip(data["environment"], data["K"], strict=True)))
    figure, axes = plt.subplots(
        2,
        len(panels),
        figsize=(3.1 * len(panels) + 1.5, 5),
        squeeze=False,
        sharex="col",
        height_ratios=[2, 1],
    )
    for column, (environment, history) in enumerate(panels):
        here = data[(data["environment"] == environment) & (data["K"] == history)]
        long = here.melt(["iteration", "seed", "model", "method"], columns, "estimator", "bias").dropna(subset=["bias"])
        long = long.assign(estimator=long["estimator"].str.removeprefix(prefix).map(ESTIMATORS))
        order = [label for label in ESTIMATORS.values() if (long["estimator"] == label).any()]
        sns.lineplot(
            data=_smooth(long, "bias", ["estimator", "seed", "model", "method"]),
            x="iteration",
            y="bias",
            hue="estimator",
            hue_order=order,
            palette=_palette(results),
            style="estimator",
            style_order=order,
            dashes=DASHES[: len(order)],
            errorbar=seed_range,
            ax=axes[0][column],
        )
        share = _smooth(here, "groups/oracle_share", ["seed", "model", "method"])
        share = share.assign(share=100 * share["groups/oracle_share"])
        sns.lineplot(data=share, x="iteration", y="share", color="0.25", errorbar=seed_range, ax=axes[1][column])
        axes[0][column].set(title=f"{environment}, K = {history}", ylabel="" if column else "bias against the oracle")
        axes[1][column].set(xlabel="training iteration", ylabel="" if column else "oracle steps (%)")
        axes[1][column].locator_params(axis="x", integer=True)
    for axis in axes.flat:  # advantages have another unit in each environment, so a panel has its own scale
        axis.set_ylim(bottom=0)
    one_legend(figure, axes)
    return figure


def group_levels(results: Results) -> Figure:
    """By level of the hierarchy, averaged over training: mean size of the groups, and the share of steps that have a
    group at that level at all."""
    levels = range(max(results.config.matrix.history) + 1)
    columns = [f"groups/{quantity}/{k}" for quantity in ("mean_size", "shared_share") for k in levels]
    data = long_metrics(results, columns)
    if data.empty or not data[columns].notna().any(axis=None):
        raise NotMeasured("no run has group diagnostics")
    data = _of_reference(results, data)
    long = data.melt(["environment", "K", "seed", "model", "method", "iteration"], columns, "name", "value")
    long = long.dropna(subset=["value"])
    long[["quantity", "level"]] = long["name"].str.extract(r"groups/(\w+)/(\d+)")
    runs = long.groupby(["environment", "K", "seed", "model", "quantity", "level"], as_index=False)["value"].mean()
    runs["level"] = runs["level"].astype(int)
    environments = sorted(runs["environment"].unique())
    figure, axes = plt.subplots(
        1, 2 * len(environments), figsize=(2.9 * 2 * len(environments) + 0.8, 2.9), squeeze=False
    )
    for column, environment in enumerate(environments):
        for offset, (quantity, label) in enumerate(
            [("mean_size", "mean size of a group"), ("shared_share", "steps in a group (%)")]
        ):
            axis = axes[0][2 * column + offset]
            part = runs[(runs["environment"] == environment) & (runs["quantity"] == quantity)]
            part = part.assign(
                value=part["value"] * (100 if quantity == "shared_share" else 1), K=part["K"].astype(str)
            )
            lengths = part["K"].nunique()
            sns.lineplot(
                data=part,
                x="level",
                y="value",
                hue="K",
                style="K",
                markers=MARKERS[:lengths],
                dashes=DASHES[:lengths],
                errorbar=seed_range,
                ax=axis,
            )
            axis.set(title=environment, xlabel="level k", ylabel=label, xticks=list(levels))
            axis.set_ylim(bottom=0)
    one_legend(figure, axes, "K")
    return figure


def _palette(results: Results) -> dict[str, Any]:
    """The colours of GRPO, GiGPO and HGPO are those of the methods of that name; the others get unused ones."""
    known, spare = colours(results.config.matrix.methods), iter(reversed(sns.color_palette("colorblind")))
    methods = {"grpo": "grpo", "gigpo": "gigpo", "hgpo_paper": "hgpo"}
    return {
        label: known[methods[name]] if methods.get(name) in known else next(spare) for name, label in ESTIMATORS.items()
    }


def _of_reference(results: Results, data: pd.DataFrame) -> pd.DataFrame:
    """Only the runs trained with HGPO, if there are any: their rollouts are what the groups are about."""
    own = data["method"].map(results.estimator) == "hgpo"
    return data[own] if own.any() else data


def _smooth(data: pd.DataFrame, column: str, keys: list[str]) -> pd.DataFrame:
    """Moving average of `column` over a tenth of the iterations, within each group of `keys`."""
    ordered = data.sort_values("iteration")
    window = max(1, round(ordered["iteration"].nunique() / 10))
    mean = ordered.groupby(keys)[column].transform(lambda v: v.rolling(window, min_periods=1).mean())
    return ordered.assign(**{column: mean})
