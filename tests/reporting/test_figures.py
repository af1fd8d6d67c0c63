from __future__ import annotations

import json
import shutil

import pytest
from PIL import Image

from hgpo.reporting.build import FIGURES, make_tables, write_figures
from hgpo.reporting.collect import load_results
from hgpo.reporting.curves import training_curves
from hgpo.reporting.expected import expected_figures, expected_tables
from hgpo.reporting.figure import seed_range
from hgpo.reporting.outcomes import domains, task_types, time_breakdown


@pytest.fixture(scope="module")
def drawn(made):
    return write_figures(made)


def test_every_figure_is_drawn_in_three_formats(made, drawn):
    folder = made.folder / "figures"
    listing = json.loads((folder / "figures.json").read_text())
    assert set(listing["written"]) == set(FIGURES) and listing["missing"] == {}
    for name in FIGURES:
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert b"<svg" in (folder / f"{name}.svg").read_bytes()[:1000]
        with Image.open(folder / f"{name}.png") as image:
            assert image.width > 800 and len(image.convert("L").getcolors(1 << 24)) > 20  # not blank


def test_the_expected_tables_and_figures_are_those_that_are_made(made, drawn):
    assert expected_figures(made) == sorted(FIGURES)
    tables, missing = make_tables(load_results(made))
    assert expected_tables(made) == sorted([table.name for table in tables] + list(missing))
    assert set(missing) == {"leakage"}  # the made-up data are not prepared ones


def test_figures_are_the_same_bytes_every_time(made, drawn):
    kept = {path: path.read_bytes() for path in drawn}
    assert {path: path.read_bytes() for path in write_figures(made)} == kept


def test_a_figure_without_its_data_is_not_drawn_and_says_why(results):
    shutil.rmtree(results.folder / "runs")
    write_figures(results)
    folder = results.folder / "figures"
    listing = json.loads((folder / "figures.json").read_text())
    assert set(listing["missing"]) == {"training_curves", "bias", "group_levels", "time_breakdown"}
    assert listing["missing"]["training_curves"] == "no run has training metrics"
    assert not (folder / "bias.png").exists() and (folder / "domains.png").exists()


def test_curves_show_the_mean_over_training_seeds(made):
    results = load_results(made)
    figure = training_curves(results)
    axis = figure.axes[0]
    titles = [a.get_title() for a in figure.axes]
    assert {"alfworld, tiny", "webshop, tiny"} <= set(titles)
    runs = [m for run, m in results.metrics.items() if (run.environment, run.method) == ("alfworld", "hgpo")]
    line = next(line for line in axis.lines if len(line.get_ydata()))  # hgpo comes first in the configuration
    expected = 100 * sum(m["success"] for m in runs) / len(runs)
    assert line.get_ydata() == pytest.approx(expected.to_numpy())


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A matrix of which much was not run: both K in one environment only, other methods in each panel."""
    from fake_results import make_results

    matrix = {"models": ["tiny"], "environments": ["alfworld", "webshop"], "methods": ["hgpo", "gigpo", "hgpo_flat"]}
    matrix |= {"history": [2, 4], "training_seeds": [0]}
    config = make_results(tmp_path_factory.mktemp("uneven"), 12, 2, matrix=matrix, training={"iterations": 6})
    for cell in ["webshop/hgpo/K2", *(f"webshop/{m}/K4" for m in ("hgpo", "gigpo", "hgpo_flat", "warm_start"))]:
        shutil.rmtree(config.folder / "episodes" / "tiny" / cell)
        shutil.rmtree(config.folder / "runs" / "tiny" / cell, ignore_errors=True)
    for method in ("gigpo", "warm_start"):
        shutil.rmtree(config.folder / "episodes" / "tiny" / "alfworld" / method / "K4")
    shutil.rmtree(config.folder / "runs" / "tiny" / "alfworld" / "gigpo" / "K4")
    return load_results(config)


@pytest.mark.parametrize("draw", [domains, task_types])
def test_a_method_has_one_marker_in_all_panels(uneven, draw):
    figure = draw(uneven)
    looks = [
        (bars.get_label(), bars.lines[0].get_marker(), bars.lines[0].get_color())
        for axis in figure.axes
        for bars in axis.containers
    ]
    named = {label for label, _, _ in looks}
    assert len(set(looks)) == len(named) and len(looks) > len(named)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == named


def test_lines_mean_the_same_in_all_panels_of_the_curves(uneven):
    figure = training_curves(uneven)
    alfworld, webshop = figure.axes[:2]
    looks = [
        {(line.get_color(), line.get_linestyle()) for line in axis.lines if len(line.get_ydata())}
        for axis in (alfworld, webshop)
    ]
    assert len(looks[0]) == 5 and len(looks[1]) == 2
    assert looks[1] < looks[0]  # K = 2, with the colours of their methods
    assert {style for _, style in looks[1]} == {"-"}


def test_shares_of_the_estimator_stand_beside_their_own_bars(uneven):
    figure = time_breakdown(uneven)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    for axis, cells in zip(figure.axes, [5, 2], strict=True):
        bars = {round(bar.get_y() + bar.get_height() / 2, 6) for bar in axis.patches}
        assert {text.xy[1] for text in axis.texts} == bars and len(bars) == cells
    webshop = {rows[round(text.xy[1])] for text in figure.axes[1].texts}
    assert webshop == {"gigpo, K=2", "hgpo_flat, K=2"}


def test_bands_are_the_range_of_the_training_seeds():
    assert seed_range([2.0, 1.0, 3.0, 1.5]) == (1.0, 3.0)
