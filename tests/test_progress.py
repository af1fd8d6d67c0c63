"""Long work says how far it is, also where there is no terminal."""

from __future__ import annotations

import sys
import time

from hgpo import progress as module
from hgpo.progress import progress
from hgpo.training.journal import Journal


def test_a_log_gets_a_whole_line_now_and_then(capfd, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.05)
    for _ in progress(range(8), total=8, desc="games", unit="game"):
        time.sleep(0.02)
    lines = capfd.readouterr().err.splitlines()
    assert 3 <= len(lines) < 8, lines
    assert lines[0].startswith("games: 0 of 8") and lines[-1].startswith("games: 8 of 8")
    assert "\r" not in "".join(lines)


def test_a_log_is_not_filled_by_quick_work(capfd):
    with progress(total=1000, desc="episodes", unit="episode", initial=10) as bar:
        for _ in range(990):
            bar.update()
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["episodes: 10 of 1000", "episodes: 1000 of 1000"]


def test_a_journal_takes_any_text_and_a_closed_stream_ends_no_work(tmp_path, monkeypatch):
    with open(tmp_path / "closed", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
    Journal(tmp_path / "train.log")("a name \udce9")
    assert "a name \\udce9" in (tmp_path / "train.log").read_text()
    for _ in progress(range(2), total=2, desc="games", unit="game"):
        pass
