"""Writes all tables and all figures of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from hgpo.config import Config
from hgpo.files import write_json
from hgpo.reporting import curves, diagnostics, outcomes
from hgpo.reporting.breakdowns import type_tables, webshop_table
from hgpo.reporting.collect import NotMeasured, Results, data_away, load_results, read_json
from hgpo.reporting.comparisons import comparisons_table
from hgpo.reporting.figure import save, style
from hgpo.reporting.leakage import leakage_table
from hgpo.reporting.paper import paper_table
from hgpo.reporting.results import results_table
from hgpo.reporting.table import Table, write
from hgpo.reporting.training import ablation_table, cost_table

TABLES: dict[str, Callable[[Results], Table | list[Table]]] = {
    "results": results_table,
    "comparisons": comparisons_table,
    "types": type_tables,
    "webshop": webshop_table,
    "paper": paper_table,
    "cost": cost_table,
    "ablation": ablation_table,
    "leakage": leakage_table,
}
FIGURES: dict[str, Callable[[Results], Figure]] = {
    "training_curves": curves.training_curves,
    "bias": diagnostics.bias,
    "group_levels": diagnostics.group_levels,
    "task_types": outcomes.task_types,
    "domains": outcomes.domains,
    "time_breakdown": outcomes.time_breakdown,
}


def make_tables(results: Results) -> tuple[list[Table], dict[str, str]]:
    """The tables, and why each of the others cannot be made."""
    made: list[Table] = []
    missing: dict[str, str] = {}
    for name, make in TABLES.items():
        try:
            table = make(results)
        except NotMeasured as reason:
            missing[name] = str(reason)
        else:
            made += table if isinstance(table, list) else [table]
    return made, missing


def write_tables(config: Config) -> list[Path]:
    """Writes every table that has its data below `results/<name>/tables`, and `tables.json`; returns the paths.

    `tables.json` lists the files of each table and, for the others, why they are missing. Tables that it listed before
    and that can no longer be made are removed, but for `kept_tables`.
    """
    folder = config.folder / "tables"
    made, missing = make_tables(load_results(config))
    kept = {name: [folder / file for file in files] for name, files in kept_tables(config).items()}
    written = {table.name: write(table, folder) for table in made if table.name not in kept} | kept
    return _finish(folder, "tables.json", written, {name: why for name, why in missing.items() if name not in kept})


def kept_tables(config: Config) -> dict[str, list[str]]:
    """Files of tables that stay as they are, since the prepared data that they are made from are not all here."""
    folder = config.folder / "tables"
    files = (read_json(folder / "tables.json") or {"written": {}})["written"].get("leakage", [])
    there = bool(files) and all((folder / file).is_file() for file in files)
    return {"leakage": files} if there and data_away(config) else {}


def write_figures(config: Config) -> list[Path]:
    """Draws every figure that has its data below `results/<name>/figures`, and `figures.json`; returns the paths.

    `figures.json` is to figures what `tables.json` is to tables.
    """
    results, folder = load_results(config), config.folder / "figures"
    style()
    drawn: dict[str, list[Path]] = {}
    missing: dict[str, str] = {}
    for name, draw in FIGURES.items():
        try:
            drawn[name] = save(draw(results), folder, name)
        except NotMeasured as reason:
            missing[name] = str(reason)
    return _finish(folder, "figures.json", drawn, missing)


def _finish(folder: Path, listing: str, written: dict[str, list[Path]], missing: dict[str, str]) -> list[Path]:
    paths = [path for files in written.values() for path in files]
    before = read_json(folder / listing) or {"written": {}}
    for name in {name for names in before["written"].values() for name in names} - {path.name for path in paths}:
        (folder / name).unlink(missing_ok=True)
    names = {name: [path.name for path in files] for name, files in written.items()}
    write_json(folder / listing, {"written": names, "missing": missing})
    return [*paths, folder / listing]
