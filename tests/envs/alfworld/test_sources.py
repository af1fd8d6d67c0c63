"""Data from mirrors and from the official release: any form gives the same prepared folder, or one clear message."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from envs.served import serve

from hgpo.config.alfworld import AlfworldData
from hgpo.envs.alfworld import SPLITS, list_tasks, open_environment, prepare
from hgpo.envs.alfworld.data import content_of
from hgpo.errors import DataError
from hgpo.files import sha256_file, sha256_folder


@pytest.fixture
def mirror(prepared, tmp_path) -> Path:
    """A folder in the layout of the official data, with a trial that never was a game."""
    root = tmp_path / "mirror" / "json_2.1.1"
    shutil.copytree(prepared / "games", root)
    movable = root / "train" / "pick_and_place_with_movable_recep-Pen-Mug-Desk-301" / "trial_T1"
    movable.mkdir(parents=True)
    (movable / "traj_data.json").write_text("{}")
    return root.parent


def _mirror(path: Path, **settings) -> AlfworldData:
    return AlfworldData(source="mirror", mirror=str(path), **settings)


def _tar(mirror: Path, file: Path, mode: str = "w") -> Path:
    with tarfile.open(file, mode) as archive:
        archive.add(mirror / "json_2.1.1", "json_2.1.1")
    return file


def _zip(mirror: Path, file: Path, names: tuple[str, ...]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(mirror.rglob("*")):
            if path.name in names:
                archive.write(path, path.relative_to(mirror))
    return file


def _packed(mirror: Path, form: str) -> Path:
    base = mirror.parent / "packed"
    base.mkdir(exist_ok=True)
    if form == "tar.zst":
        tar = _tar(mirror, mirror.parent / "plain.tar")
        (base / "data.tar.zst").write_bytes(zstandard.compress(tar.read_bytes()))
        return base  # a folder with one archive
    if form == "tar.gz":
        return _tar(mirror, base / "data.tar.gz", "w:gz")
    if form == "zip":
        return _zip(mirror, base / "data.zip", ("game.tw-pddl", "traj_data.json"))
    return {"folder": mirror, "json_2.1.1": mirror / "json_2.1.1"}[form]


@pytest.mark.parametrize("form", ["folder", "json_2.1.1", "tar.zst", "tar.gz", "zip"])
def test_every_form_of_a_mirror_gives_the_same_games(prepared, mirror, tmp_path, form):
    prepare(_mirror(_packed(mirror, form)), tmp_path / "out")
    for split in SPLITS:
        assert list_tasks(tmp_path / "out", split) == list_tasks(prepared, split)
    task = list_tasks(tmp_path / "out", "train")[0]
    assert content_of(tmp_path / "out", task.id) == task.content
    environment = open_environment(tmp_path / "out")
    assert environment.reset(task).goal == task.goal
    environment.close()


def test_a_prepared_folder_outlives_its_mirror(mirror, tmp_path):
    for path in mirror.rglob("*"):
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    prepare(_mirror(mirror), tmp_path / "out")
    for path in [mirror, *mirror.rglob("*")]:
        os.chmod(path, 0o755)
    shutil.rmtree(mirror)
    task = list_tasks(tmp_path / "out", "valid_seen")[0]
    environment = open_environment(tmp_path / "out")
    environment.reset(task)
    environment.close()
    shutil.rmtree(tmp_path / "out")


def test_preparing_again_changes_nothing_and_mends_damage(mirror, tmp_path):
    settings, out = _mirror(mirror), tmp_path / "out"
    prepare(settings, out)
    before, written = sha256_folder(out), (out / "index.json").stat().st_mtime_ns
    prepare(settings, out)
    assert (out / "index.json").stat().st_mtime_ns == written
    game = out / "games" / list_tasks(out, "train")[0].id / "game.tw-pddl"
    game.write_bytes(game.read_bytes()[:100])
    prepare(settings, out)
    assert sha256_folder(out) == before
    prepare(_mirror(mirror, limits={"train": 2}), out)
    assert len(list_tasks(out, "train")) == 2


def test_a_folder_that_is_a_link_is_replaced_and_what_it_leads_to_stays(mirror, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    prepare(_mirror(mirror), out)
    shutil.move(out / "games", elsewhere)
    (out / "games").symlink_to(elsewhere)
    before = sha256_folder(elsewhere)
    prepare(_mirror(mirror, limits={"train": 2}), out)
    assert len(list_tasks(out, "train")) == 2 and sha256_folder(elsewhere) == before


def test_a_name_that_is_not_utf8_is_refused(mirror, tmp_path):
    trial = _first(mirror, "game.tw-pddl").parent
    trial.rename(trial.with_name("trial_" + os.fsdecode(b"\xe9")))
    with pytest.raises(DataError, match=r"trial_\\xe9' is not UTF-8"):
        prepare(_mirror(mirror), tmp_path / "out")


def test_limits_and_types_select_the_same_tasks_each_time(mirror, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        prepare(_mirror(mirror, limits={"train": 5}, seed=seed), tmp_path / name)
    a, b, c = ([task.id for task in list_tasks(tmp_path / name, "train")] for name in "abc")
    assert a == b and len(a) == 5 and a != c
    assert len(list_tasks(tmp_path / "a", "valid_seen")) == 6
    prepare(_mirror(mirror, task_types=["look_at_obj_in_light"]), tmp_path / "d")
    assert {task.type for split in SPLITS for task in list_tasks(tmp_path / "d", split)} == {"look_at_obj_in_light"}


def _first(mirror: Path, name: str) -> Path:
    return sorted(mirror.rglob(name))[0]


def test_a_missing_game_file_is_named(mirror, tmp_path):
    game = _first(mirror, "game.tw-pddl")
    game.unlink()
    with pytest.raises(DataError, match="1 trials of train lack their game file") as error:
        prepare(_mirror(mirror), tmp_path / "out")
    assert str(game.relative_to(mirror / "json_2.1.1")) in error.value.message
    assert not (tmp_path / "out" / "index.json").exists()


@pytest.mark.parametrize("name", ["game.tw-pddl", "traj_data.json"])
def test_a_truncated_file_is_named_and_leaves_nothing_behind(mirror, tmp_path, name):
    file = _first(mirror, name)
    if "movable" in str(file):
        file = sorted(mirror.rglob(name))[-1]
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DataError, match="truncated") as error:
        prepare(_mirror(mirror), tmp_path / "out")
    assert str(file) in error.value.message
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_game_file_that_goes_missing_after_preparation_is_named(mirror, tmp_path):
    prepare(_mirror(mirror), tmp_path / "out")
    task = list_tasks(tmp_path / "out", "train")[0]
    (tmp_path / "out" / "games" / task.id / "game.tw-pddl").unlink()
    with pytest.raises(DataError, match="is missing"):
        list_tasks(tmp_path / "out", "train")
    environment = open_environment(tmp_path / "out")
    with pytest.raises(DataError, match="cannot be read"):
        environment.reset(task)
    environment.close()


@pytest.mark.parametrize(
    "case", ["empty", "absent", "no archive", "truncated tar.zst", "truncated zip", "empty splits"]
)
def test_data_without_games_are_refused(mirror, tmp_path, case):
    place = tmp_path / "place"
    place.mkdir()
    if case == "absent":
        place = place / "nowhere"
    elif case == "no archive":
        (place / "notes.txt").write_text("nothing here")
        place = place / "notes.txt"
    elif case.startswith("truncated"):
        packed = _packed(mirror, case.split()[1])
        archive = packed if packed.is_file() else next(packed.iterdir())
        place = place / archive.name
        place.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    elif case == "empty splits":
        (place / "train").mkdir()
    with pytest.raises(DataError) as error:
        prepare(_mirror(place), tmp_path / "out")
    assert str(place) in error.value.message and error.value.hint
    assert not (tmp_path / "out" / "index.json").exists()


def test_the_official_release_is_fetched_and_a_broken_transfer_goes_on(prepared, mirror, tmp_path, monkeypatch):
    folder = tmp_path / "release"
    (folder / "0.4.2").mkdir(parents=True)
    (folder / "0.2.2").mkdir()
    games = _zip(mirror, folder / "0.4.2" / "games.zip", ("game.tw-pddl",))
    trials = _zip(mirror, folder / "0.2.2" / "trials.zip", ("traj_data.json",))
    monkeypatch.setenv("HGPO_CACHE", str(tmp_path / "cache"))
    official = [(f"{file.parent.name}/{file.name}", sha256_file(file)) for file in (games, trials)]
    monkeypatch.setattr("hgpo.envs.alfworld.data.OFFICIAL", tuple(official))
    monkeypatch.setattr("hgpo.envs.download.time.sleep", lambda seconds: None)
    with serve(folder, break_after=5000) as server:
        settings = AlfworldData(source="official", official_url=server.url)
        prepare(settings, tmp_path / "out")
        assert server.ranges  # at least one transfer was resumed
        fetched = len(server.requests)
        prepare(settings, tmp_path / "again")
        assert len(server.requests) == fetched
    for split in SPLITS:
        assert list_tasks(tmp_path / "out", split) == list_tasks(prepared, split)


def test_the_prepared_trajectories_hold_no_solution(mirror, tmp_path):
    file = _first(mirror, "traj_data.json")
    if "movable" in str(file):
        file = sorted(mirror.rglob("traj_data.json"))[-1]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"plan": {"high_pddl": ["secret"]}}))
    prepare(_mirror(mirror), tmp_path / "out")
    assert not any("secret" in path.read_text() for path in (tmp_path / "out").rglob("traj_data.json"))


def test_an_archive_that_cannot_be_unpacked_is_named(mirror, tmp_path, monkeypatch):
    archive = _packed(mirror, "tar.gz")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HGPO_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be unpacked") as error:
        prepare(_mirror(archive), tmp_path / "out")
    assert "HGPO_CACHE" in error.value.hint
