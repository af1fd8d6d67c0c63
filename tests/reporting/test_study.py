"""The results in the repository are what their manifest says, and what README and documentation print of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hgpo.config import load_config
from hgpo.provenance.verify import verify

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"warm_start": ("start", "warm start"), "grpo": ("GRPO",), "gigpo": ("GiGPO",), "hgpo": ("HGPO",)}


@pytest.mark.parametrize("folder", ["results/study", "results/study/in_domain"])
def test_the_committed_results_verify(folder, monkeypatch):
    monkeypatch.chdir(ROOT)  # the configuration names its folders relative to the project
    found = verify(load_config(ROOT / folder / "config.yaml"))
    assert not found.differences, "write tables, figures and manifest of " + folder + " again: see docs/study.md"
    assert found.checked["tables"] >= 5 and found.checked["files"] > 40


@pytest.mark.parametrize("page", ["README.md", "docs/study.md"])
def test_pages_print_the_numbers_of_the_table(page):
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    table = pd.read_csv(ROOT / "results/study/tables/results.csv")
    checked = 0
    for row in table[table["method"].isin(ROWS)].to_dict("records"):
        cell = f"{100 * row['success']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        named = [line for line in lines if line.startswith(tuple(f"| {name}" for name in ROWS[row["method"]]))]
        assert any(cell in line for line in named), f"{page}: {row['method']}, {row['split']} is {cell}"
        checked += 1
    assert checked == 8
