"""Prepared data are proved file by file: what was changed after it was prepared is named."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import yaml

from hgpo.config import ENVIRONMENTS, Config
from hgpo.config.experiment import parse_config
from hgpo.envs import preparation
from hgpo.envs.preparation import MARKER, prepare, verify_data
from hgpo.errors import DataError
from hgpo.files import SUMS


def config_of(folder) -> Config:
    games = {"train": 6, "valid_seen": 2, "valid_unseen": 2}
    data = {"directory": str(folder), "alfworld": {"games": games}, "webshop": {"products": 30}}
    return parse_config({"name": "x", "data": data, "models": {"tiny": {}}, "matrix": {"models": ["tiny"]}})


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def environment(request):
    return request.param


@pytest.fixture(scope="module")
def whole(environment, tmp_path_factory):
    config = config_of(tmp_path_factory.mktemp("whole"))
    prepare(config, environment)
    return config.data_folder(environment)


@pytest.fixture
def config(environment, whole, tmp_path):
    """The configuration of a copy of the prepared data that tests may change."""
    config = config_of(tmp_path)
    shutil.copytree(whole, config.data_folder(environment))
    return config


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_a_changed_byte_of_any_file_is_found(config, environment):
    folder = config.data_folder(environment)
    assert verify_data(config, environment)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        flip(path)
        with pytest.raises(DataError):
            verify_data(config, environment)
        path.write_bytes(content)
    (folder / SUMS).write_text("")
    with pytest.raises(DataError, match="SHA256SUMS is not the one that was written"):
        verify_data(config, environment)
    (folder / SUMS).unlink()
    with pytest.raises(DataError, match="SHA256SUMS is not the one that was written"):
        verify_data(config, environment)


def test_the_file_is_named_and_the_mend(config, environment):
    folder = config.data_folder(environment)
    changed = next(path for path in sorted(folder.rglob("*.json")) if path.parent.name not in ("panels", environment))
    flip(changed)
    with pytest.raises(DataError) as error:
        verify_data(config, environment)
    assert str(changed) in error.value.message and f"delete {folder} and run `hgpo prepare-data` anew" in str(
        error.value
    )


def test_data_of_other_settings_are_refused(config, environment):
    other = config.model_copy(deep=True)
    getattr(other.data, environment).seed = 5
    with pytest.raises(DataError, match=f"{MARKER} is of other settings"):
        verify_data(other, environment)
    config.data.panel_seed = 1
    with pytest.raises(DataError, match=f"{MARKER} is of other settings"):
        verify_data(config, environment)


@pytest.mark.parametrize("step", ["write_panels", "write_sums", "write_json"])
def test_an_interruption_after_a_change_of_settings_is_mended_by_the_next_run(config, environment, step, monkeypatch):
    getattr(config.data, environment).seed = 5
    config.data.panel_seed = 7

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(preparation, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(config, environment)
    monkeypatch.undo()
    assert not (config.data_folder(environment) / MARKER).exists()
    prepare(config, environment)
    assert verify_data(config, environment)


def test_a_missing_file_is_made_again_or_refused(config, environment):
    folder = config.data_folder(environment)
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (SUMS, MARKER)):
        content = path.read_bytes()
        path.unlink()
        try:
            prepare(config, environment)
        except DataError as error:
            assert str(path) in error.message
            path.write_bytes(content)
        assert path.read_bytes() == content


def test_preparing_again_changes_nothing_and_never_vouches_for_a_damaged_file(config, environment):
    folder = config.data_folder(environment)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    prepare(config, environment)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    for path in before:
        if path.name not in (SUMS, MARKER):
            flip(path)
            try:
                prepare(config, environment)
            except DataError as error:
                assert str(path) in error.message
                path.write_bytes(before[path])
            assert path.read_bytes() == before[path], f"{path} was neither mended nor refused"


def test_two_at_once_leave_what_one_leaves(whole, environment, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config_of(tmp_path / "data").model_dump(mode="json")))
    command = [sys.executable, "-m", "hgpo", "prepare-data", "--config", str(file), "--environment", environment]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    folder = config_of(tmp_path / "data").data_folder(environment)
    assert (folder / SUMS).read_bytes() == (whole / SUMS).read_bytes()
    assert verify_data(config_of(tmp_path / "data"), environment)


def test_the_files_of_a_folder_that_is_a_link_are_listed(config, environment, tmp_path):
    folder = config.data_folder(environment)
    listed = (folder / SUMS).read_bytes()
    place = next(path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "panels")
    shutil.move(place, tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    (folder / MARKER).unlink()
    prepare(config, environment)
    assert place.is_symlink() and (folder / SUMS).read_bytes() == listed and verify_data(config, environment)
    for path in sorted(path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()):
        flip(path)
        with pytest.raises(DataError):
            verify_data(config, environment)
        flip(path)
