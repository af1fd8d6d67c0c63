"""Where games are read from: a folder in the official layout, or an archive of one."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Protocol

import zstandard
from filelock import FileLock

from hgpo.envs.alfworld.compiled import cache_folder
from hgpo.errors import DataError
from hgpo.files import atomic_folder, is_utf8, sha256_file

SPLITS = ("train", "valid_seen", "valid_unseen")
GAME = "game.tw-pddl"
TRAJECTORY = "traj_data.json"
UNSUPPORTED = ("movable", "Sliced")  # trials that the text games leave out
ARCHIVES = (".tar.zst", ".tar.gz", ".tgz", ".tar", ".zip")


class Source(Protocol):
    """Games by task id `<split>/<task>/<trial>`."""

    name: str

    def trials(self, split: str) -> set[str]:
        """Ids of the trials of a split that have a game or a trajectory file."""
        ...

    def read(self, task: str, file: str) -> bytes:
        """The content of one of a trial's files. Raises DataError, naming it, if it is missing."""
        ...

    def has(self, task: str, file: str) -> bool: ...


class FolderSource:
    """A folder with `<split>/<task>/<trial>/` below it."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self.root = root

    def trials(self, split: str) -> set[str]:
        found = {path.parent for file in (GAME, TRAJECTORY) for path in (self.root / split).glob(f"*/*/{file}")}
        for path in sorted(found):
            if not is_utf8(path):
                raise DataError(f"the name of the folder {os.fsencode(path)!r} is not UTF-8", "rename the folder")
        return {str(path.relative_to(self.root)) for path in found}

    def has(self, task: str, file: str) -> bool:
        return (self.root / task / file).is_file()

    def read(self, task: str, file: str) -> bytes:
        try:
            return (self.root / task / file).read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.root / task / file} cannot be read: {error.strerror}", "restore the file from the data's source"
            ) from None


class ZipSource:
    """Zip archives that together hold `.../<split>/<task>/<trial>/<file>`."""

    def __init__(self, *archives: Path) -> None:
        self.name = " and ".join(map(str, archives))
        self._members: dict[tuple[str, str], tuple[zipfile.ZipFile, str]] = {}
        for path in archives:
            try:
                archive = zipfile.ZipFile(path)
            except (OSError, zipfile.BadZipFile) as error:
                raise DataError(f"{path} is no readable zip archive: {error}", "delete it and fetch it again") from None
            for member in archive.namelist():
                *_, split, task, trial, file = ("", "", "", *member.split("/"))
                if split in SPLITS and file in (GAME, TRAJECTORY):
                    self._members[f"{split}/{task}/{trial}", file] = (archive, member)

    def trials(self, split: str) -> set[str]:
        return {task for task, _ in self._members if task.startswith(f"{split}/")}

    def has(self, task: str, file: str) -> bool:
        return (task, file) in self._members

    def read(self, task: str, file: str) -> bytes:
        try:
            archive, member = self._members[task, file]
            return archive.read(member)
        except KeyError:
            raise DataError(f"{self.name} lacks {task}/{file}", "fetch the archive again") from None
        except (OSError, zipfile.BadZipFile, EOFError) as error:
            raise DataError(f"{self.name}: {task}/{file} is corrupt: {error}", "fetch the archive again") from None


def open_source(path: Path) -> Source:
    """A source of games from whatever a user may name.

    That is: a prepared folder of ours, a folder that holds `json_2.1.1/`, that folder itself, an archive of it, or a
    folder that holds one archive. Tar archives are unpacked once, to the cache folder. Raises DataError if no game is
    found there.
    """
    if not path.exists():
        raise DataError(f"there is no {path}", "name an existing folder or archive of ALFWorld games")
    if path.is_file():
        return _open_archive(path)
    for root in (path / "games", path / "json_2.1.1", path):
        if any((root / split).is_dir() for split in SPLITS):
            return FolderSource(root)
    archives = sorted(file for file in path.iterdir() if file.name.endswith(ARCHIVES))
    if len(archives) == 1:
        return _open_archive(archives[0])
    found = "no archive" if not archives else f"{len(archives)} archives"
    raise DataError(
        f"{path} holds no ALFWorld games: none of {', '.join(SPLITS)} is in it, and {found}",
        "name the folder that holds json_2.1.1/, or its archive",
    )


def _open_archive(path: Path) -> Source:
    if path.name.endswith(".zip"):
        return ZipSource(path)
    if not path.name.endswith(ARCHIVES):
        raise DataError(f"{path} is no archive of ALFWorld games", f"name a file that ends in {', '.join(ARCHIVES)}")
    target = cache_folder() / "unpacked" / sha256_file(path)[:32]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if not target.exists():
                _unpack(path, target)
    except OSError as error:
        raise DataError(
            f"{path} cannot be unpacked to {target}: {error.strerror or error}",
            "set HGPO_CACHE to a writable folder with 300 MB of room, or name an unpacked folder",
        ) from None
    return open_source(target)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Writes a plain file of the archive; links and the like are passed over. (Python 3.11.2 knows no filters.)"""
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        return
    place = Path(os.path.normpath(folder / member.name))
    if not place.is_relative_to(os.path.normpath(folder)):
        raise tarfile.TarError(f"it would write outside its folder: {member.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "wb") as file:
        shutil.copyfileobj(content, file)


def _unpack(path: Path, target: Path) -> None:
    try:
        with atomic_folder(target.absolute()) as folder, open(path, "rb") as packed:
            zst = path.name.endswith(".zst")
            stream = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(packed) if zst else packed
            with tarfile.open(fileobj=stream, mode="r|" if zst else "r|*") as archive:
                for member in archive:
                    _extract(archive, member, folder)
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise DataError(f"{path} is truncated or corrupt: {error}", "fetch the archive again") from None
