"""How every figure looks and is written: seaborn, colour-blind-safe, PDF, SVG and PNG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from hgpo.files import atomic_path

ENDINGS = ("pdf", "svg", "png")
DASHES = ["", (4, 1.5), (1, 1), (3, 1, 1, 1), (5, 1, 1, 1, 1, 1), (2, 2)]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


def style() -> None:
    """Sets the common style. Lines differ by dash as well as by colour, so that they can be told apart in grey."""
    sns.set_theme(context="paper", style="whitegrid", palette="colorblind", font_scale=1.05)
    plt.rcParams |= {
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "svg.hashsalt": "hgpo",  # the same figure gives the same file
        "svg.fonttype": "path",
        "pdf.fonttype": 42,
        "axes.titlesize": "medium",
        "legend.frameon": False,
    }


def colours(methods: list[str]) -> dict[str, Any]:
    """A colour for each method of the configuration, the same in every figure; greys for the warm start and baselines.

    methods: the configuration's methods. Other names asked for get a grey.
    """
    palette = sns.color_palette("colorblind", n_colors=max(len(methods), 1))
    return defaultdict(lambda: "0.45", zip(methods, palette, strict=True))


def markers(methods: Iterable[str]) -> dict[str, str]:
    """A marker for each method, baselines and warm start among them, to be the same in all panels of a figure."""
    return dict(zip(dict.fromkeys(methods), cycle(MARKERS), strict=False))


def seed_range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest of the training seeds: too few for an interval."""
    return float(np.min(values)), float(np.max(values))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes `<folder>/<name>.{pdf,svg,png}` without dates in them, and closes the figure."""
    paths = [folder / f"{name}.{ending}" for ending in ENDINGS]
    for path, ending in zip(paths, ENDINGS, strict=True):
        stamp = {"CreationDate": None} if ending == "pdf" else {"Date": None} if ending == "svg" else {}
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=ending, bbox_inches="tight", metadata=stamp)
    plt.close(figure)
    return paths
