"""The results in the repository are what their manifest says, and what README and documentation print of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hgpo.config import load_config
from hgpo.provenance.verify import verify

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"warm_start": "warm start", "grpo": "GRPO", "gigpo": "GiGPO", "hgpo": "HGPO"}
NAMES |= {"hgpo_actions": "HGPO of states and actions"}


def test_the_committed_results_verify(monkeypatch):
    monkeypatch.chdir(ROOT)  # the configuration names its folders relative to the project
    found = verify(load_config(ROOT / "results/study/config.yaml"))
    assert not found.differences, "write tables, figures and manifest of results/study again: see docs/study.md"
    assert found.checked["tables"] >= 5 and found.checked["files"] > 300


@pytest.mark.parametrize("page", ["README.md", "docs/study.md"])
def test_pages_print_the_numbers_of_the_table(page):
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    table = pd.read_csv(ROOT / "results/study/tables/results.csv")
    rows = table[table["method"].isin(NAMES)].to_dict("records")
    for row in rows:
        cell = f"{100 * row['success']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        name = f"| {NAMES[row['method']]}, K = {row['history']} |"
        assert any(line.startswith(name) and cell in line for line in lines), f"{page}: {name} {row['split']}: {cell}"
    assert len(rows) == 18


def test_the_page_prints_the_differences_of_the_analysis():
    page = (ROOT / "docs/study.md").read_text(encoding="utf-8").splitlines()
    pairs = pd.read_csv(ROOT / "results/study/analysis/all_pairs.csv")
    pairs = pairs[(pairs["history"] == 2) & (pairs["first"] != "warm_start") & (pairs["second"] != "warm_start")]
    checked = 0
    for row in pairs.to_dict("records"):
        named = [line for line in page if line.startswith(f"| {NAMES[row['first']]} − {NAMES[row['second']]} |")]
        if named:
            low, high = 100 * row["low"], 100 * row["high"]
            cell = f"{100 * row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
            assert cell in named[0], f"{named[0]}: {row['split']} is {cell}"
            checked += 1
    assert checked == 11
