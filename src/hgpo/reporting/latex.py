"""A table as LaTeX that fits the width of a page."""

from __future__ import annotations

import re
import textwrap

import pandas as pd

SPLIT = "environment"  # tables of several environments are cut here
DESCRIBING = ("model", SPLIT, "split", "K", "tasks", "evaluation seeds", "training seeds")
ABSENT = "–"
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # smaller if it has to be, never larger


def table_environments(name: str, title: str, text: str, cells: pd.DataFrame) -> str:
    """One booktabs `table` environment for each environment; needs the packages booktabs and graphicx alone.

    What is the same in all rows is told in the caption instead, and columns without any value are left out. The
    caption's `text` stands once.
    """
    several = SPLIT in cells and cells[SPLIT].nunique() > 1
    parts = [part for _, part in cells.groupby(SPLIT, sort=False)] if several else [cells]
    made = []
    for number, part in enumerate(parts):
        part = part.loc[:, (part != ABSENT).any()]
        constant = [c for c in DESCRIBING if c in part and len(part) > 1 and part[c].nunique() == 1]
        facts = ", ".join(f"{column} {part[column].iloc[0]}" for column in constant)
        caption = [f"{title}{' (continued)' if number else ''}.", f"All rows: {facts}." if facts else ""]
        caption += [] if number else [text]
        label = f"{name}-{part[SPLIT].iloc[0]}" if several else name
        made.append(_environment(label, " ".join(filter(None, caption)), part.drop(columns=constant)))
    return "\n".join(made)


def _environment(label: str, caption: str, cells: pd.DataFrame) -> str:
    headings = {column: _heading(column, cells[column]) for column in cells}
    escaped = cells.map(lambda cell: escape(str(cell))).rename(columns=headings)
    tabular = escaped.style.hide(axis="index").to_latex(hrules=True, column_format="l" * len(escaped.columns))
    lines = [r"\begin{table}[htbp]", r"\centering\footnotesize\setlength{\tabcolsep}{3pt}"]
    lines += [rf"\caption{{{escape(caption)}}}", rf"\label{{tab:{label.replace('_', '-')}}}\par\smallskip"]
    return "\n".join([*lines, FITTED, tabular.rstrip() + "}", r"\end{table}", ""])


def _heading(text: str, cells: pd.Series) -> str:
    """The heading, broken between words where it is wider than what stands below."""
    wide = max(len(str(cell)) for cell in cells)
    lines = textwrap.wrap(text, max(wide, 1), break_long_words=False, break_on_hyphens=False) or [""]
    broken = r"\\".join(map(escape, lines))
    return broken if len(lines) == 1 else rf"\shortstack[l]{{{broken}}}"


_SYMBOLS = {
    "[": "{[}",  # at the start of a row it would be taken for a length
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
} | {character: "\\" + character for character in "&%$#_{}"}


def escape(text: str) -> str:
    return re.sub("|".join(map(re.escape, _SYMBOLS)), lambda match: _SYMBOLS[match.group()], text)
