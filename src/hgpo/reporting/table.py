"""A table: what is printed, the numbers behind it, and its four formats."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from hgpo.files import write_text
from hgpo.reporting.latex import table_environments

FORMATS = ("md", "csv", "tex", "html")
NOT_RUN = "not run"


@dataclass(frozen=True)
class Table:
    """One table.

    name: file name without ending. title, caption: what it shows and how to read it.
    display: the cells as they are printed, headings as column names. data: the same rows as plain numbers (CSV).
    notes: sentences below the table.
    """

    name: str
    title: str
    caption: str
    display: pd.DataFrame
    data: pd.DataFrame
    notes: list[str] = field(default_factory=list)


def write(table: Table, folder: Path) -> list[Path]:
    """Writes `<folder>/<name>.{md,csv,tex,html}`, each atomically; returns the paths."""
    paths = []
    for ending, text in rendered(table).items():
        paths.append(folder / f"{table.name}.{ending}")
        write_text(paths[-1], text)
    return paths


def rendered(table: Table) -> dict[str, str]:
    """The table's text in each format, by file ending."""
    return dict(zip(FORMATS, (markdown(table), csv(table), latex(table), webpage(table)), strict=True))


def markdown(table: Table) -> str:
    return (
        "\n\n".join(
            [
                f"## {table.title}",
                table.display.to_markdown(index=False, disable_numparse=True, tablefmt="github"),
                table.caption,
                *_bullets(table),
            ]
        )
        + "\n"
    )


def csv(table: Table) -> str:
    return table.data.to_csv(index=False, lineterminator="\n")


def latex(table: Table) -> str:
    """`table` environments with booktabs that fit the width of a page (see `hgpo.reporting.latex`)."""
    return table_environments(table.name, table.title, " ".join([table.caption, *table.notes]), table.display)


def webpage(table: Table) -> str:
    """A page that stands alone and opens offline."""
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(table.title)}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{html.escape(table.title)}</h1>\n{html_grid(table)}\n"
        f"<p>{html.escape(table.caption)}</p>\n<ul>{notes}</ul>\n</html>\n"
    )


def html_grid(table: Table) -> str:
    """The table element alone."""
    return table.display.to_html(index=False, border=0)


STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:100rem;"
    "padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto;font-variant-numeric:tabular-nums}"
    "th,td{padding:.3rem .7rem;border-bottom:1px solid #8884;text-align:left;white-space:nowrap}"
    "th{border-bottom:2px solid #888}h1{font-size:1.3rem}h2{font-size:1.1rem}img{max-width:100%}"
)


def percent(value: float, digits: int = 1) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f}"


def mean_sd(mean: float, sd: float) -> str:
    """`mean ± sd` in percent; the mean alone where there is no sd."""
    return percent(mean) if math.isnan(sd) else f"{percent(mean)} ± {percent(sd)}"


def interval(low: float, high: float) -> str:
    return f"[{percent(low)}, {percent(high)}]"


def points(effect: float, low: float, high: float) -> str:
    """A difference in percentage points with its interval."""
    return f"{100 * effect:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _bullets(table: Table) -> list[str]:
    return ["\n".join(f"- {note}" for note in table.notes)] if table.notes else []
