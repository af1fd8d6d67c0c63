"""Lists of hashes: every file is in them, whatever its name, and `sha256sum` reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hgpo.files import (
    SUMS,
    atomic_folder,
    changed_since,
    clear_unfinished,
    files_below,
    read_sums,
    sha256_folder,
    write_sums,
)

NAMES = [
    b"plain",
    b"two  spaces",
    b"b\xe9b\xe9",
    "b\u00e9\u2028b".encode(),
    b"back\\slash",
    b"back\\nslash",
    b"line\nend",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_any_bytes_is_listed_as_sha256sum_lists_it(tmp_path: Path, name: bytes) -> None:
    file = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    file.write_text("content")
    write_sums(tmp_path / SUMS, [file])
    assert list(read_sums(tmp_path / SUMS)) == [os.fsdecode(name)]
    assert changed_since(tmp_path / SUMS) == []
    check = ["sha256sum", "--check", "--strict", "--quiet", SUMS]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    theirs = subprocess.run(["sha256sum", name], cwd=tmp_path, capture_output=True, check=True).stdout
    assert theirs == (tmp_path / SUMS).read_bytes()
    file.write_text("another")
    assert changed_since(tmp_path / SUMS) == [file]


def test_folders_that_are_links_are_entered_and_loops_end(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep/file").write_text("x")
    folder.mkdir()
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "deep/back").symlink_to(elsewhere)
    (folder / "up").symlink_to(folder)
    (folder / "nowhere").symlink_to(tmp_path / "absent")
    assert files_below(folder) == [folder / "link/deep/file"]
    before = sha256_folder(folder)
    (elsewhere / "deep/file").write_text("y")
    assert sha256_folder(folder) != before
    shutil.rmtree(elsewhere)
    assert files_below(folder) == [] == files_below(tmp_path / "absent")


def test_a_folder_that_was_moved_aside_when_its_process_was_killed_comes_back(tmp_path: Path, monkeypatch) -> None:
    target, real = tmp_path / "iteration-000002", os.replace
    target.mkdir()
    (target / "file").write_text("old")

    class Killed(BaseException):
        pass

    def killed(source, destination):
        if Path(destination) == target:
            raise Killed
        real(source, destination)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed), atomic_folder(target) as temporary:
        (temporary / "file").write_text("new")
    monkeypatch.undo()
    assert not target.exists()
    clear_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert (target / "file").read_text() == "old"
