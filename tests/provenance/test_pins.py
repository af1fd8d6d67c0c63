"""Pins: what is fetched is what was pinned, in a fresh clone, with a remote that is there or not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hgpo.config import Config, load_config, plan_runs
from hgpo.errors import DataError
from hgpo.provenance import pins

pytest.importorskip("dvc", reason="DVC is not installed: pip install -e '.[dvc]'")


def git(*arguments: str) -> None:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def finished_experiment(home: Path, remote: Path) -> Config:
    """A finished experiment in a git repository whose results folder git ignores; the current folder is its home."""
    home.mkdir()
    os.chdir(home)
    git("init", "-q")
    Path(".gitignore").write_text("/results/\n/data/\n.dvc-hgpo.lock\n")
    body = {"name": "toy", "data": {"directory": "data/toy"}, "models": {"tiny": {}}, "evaluation": {"seeds": [1]}}
    body["matrix"] = {"models": ["tiny"], "environments": ["alfworld"], "methods": ["hgpo"], "history": [1]}
    body["dvc"] = {"enabled": True, "remote": str(remote)}
    Path("results/toy").mkdir(parents=True)
    Path("results/toy/config.yaml").write_text(yaml.safe_dump(body))
    config = load_config("results/toy/config.yaml")
    run = plan_runs(config)[0]
    files = {
        config.data_folder("alfworld") / "prepared.json": "{}",
        run.start_folder(config) / "checkpoint.json": "start",
        run.start_folder(config) / "model.safetensors": "s" * (5 << 20),
        run.folder(config) / "final/model.safetensors": "f" * (5 << 20),
        run.folder(config) / "finished.json": "{}",
        run.folder(config) / "metrics.jsonl": "{}",
        run.episodes(config, "in_domain", 1): "episodes",
        config.folder / "tables/results.csv": "a,b",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return config


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    return finished_experiment(tmp_path / "project", tmp_path / "remote")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pinned project and its remote, made once."""
    home, before = tmp_path_factory.mktemp("pinned"), Path.cwd()
    try:
        pins.add(finished_experiment(home / "project", home / "remote"))
        git("add", "-A")
        git("commit", "-qm", "pins")
    finally:
        os.chdir(before)
    return home


@pytest.fixture
def clone(pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone of the pinned project with a remote of its own; the current folder."""
    shutil.copytree(pinned, tmp_path, dirs_exist_ok=True)
    git("clone", "-q", str(tmp_path / "project"), str(tmp_path / "clone"))
    monkeypatch.chdir(tmp_path / "clone")
    settings = Path(".dvc/config")
    settings.write_text(settings.read_text().replace(str(pinned), str(tmp_path)))
    return tmp_path / "clone"


def test_a_fresh_clone_gets_everything_back(clone: Path, tmp_path: Path) -> None:
    assert not Path("results").exists()
    config = pins.pull("toy")
    run = plan_runs(config)[0]
    for part in ("data/toy/alfworld/prepared.json", f"{run.folder(config)}/final/model.safetensors"):
        assert Path(part).read_bytes() == (tmp_path / "project" / part).read_bytes()
    assert run.episodes(config, "in_domain", 1).read_text() == "episodes"
    assert (config.folder / "tables/results.csv").read_text() == "a,b"


def test_fetched_markers_are_older_than_the_episodes(clone: Path) -> None:
    config = pins.pull("toy")
    run = plan_runs(config)[0]
    order = [config.data_folder("alfworld") / "prepared.json", run.start_folder(config) / "checkpoint.json"]
    order += [run.folder(config) / "finished.json", run.episodes(config, "in_domain", 1)]
    dates = [path.stat().st_mtime for path in order]
    assert dates == sorted(dates) and len(set(dates)) == len(dates)


def test_a_remote_that_is_away_is_named_with_the_mend(clone: Path, tmp_path: Path) -> None:
    shutil.move(tmp_path / "remote", tmp_path / "away")
    with pytest.raises(DataError) as raised:
        pins.pull("toy")
    assert "pull" in raised.value.message and "dvc remote list" in (raised.value.hint or "")


def test_a_wrong_object_in_the_remote_is_refused(clone: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "remote").rglob("*"):
        if path.is_file() and path.stat().st_size == 5 << 20:
            os.chmod(path, 0o644)
            path.write_bytes(b"x" * (5 << 20))
    with pytest.raises(DataError) as raised:
        pins.pull("toy")
    assert "pins/toy/checkpoints" in raised.value.message, "the object is named"
    assert "dvc push" in (raised.value.hint or "")
    assert not Path("results").exists()


def test_a_file_with_another_content_is_kept_and_named(clone: Path) -> None:
    config = pins.pull("toy")
    table = config.folder / "tables/results.csv"
    table.write_text("mine")
    with pytest.raises(DataError, match="results.csv"):
        pins.pull("toy")
    assert table.read_text() == "mine"


def test_an_unfinished_experiment_is_not_pinned(project: Config) -> None:
    missing = plan_runs(project)[0].folder(project) / "finished.json"
    missing.unlink()
    with pytest.raises(DataError, match="finished.json"):
        pins.add(project)


def test_pinning_again_after_a_change_pins_the_change(project: Config) -> None:
    pins.add(project)
    before = Path("pins/toy/episodes.dvc").read_text()
    plan_runs(project)[0].episodes(project, "in_domain", 1).write_text("other episodes")
    pins.add(project)
    assert Path("pins/toy/episodes.dvc").read_text() != before


def test_an_unknown_pin_names_the_known_ones(clone: Path) -> None:
    with pytest.raises(DataError) as raised:
        pins.pull("other")
    assert "toy" in (raised.value.hint or "")
