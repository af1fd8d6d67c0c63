"""Atomic writes and content hashes: a reader never sees a half-written file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary file path beside `path`; on success it is renamed to `path`, on failure removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    os.chmod(name, 0o666 & ~_umask())
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; on success it replaces `path` as a whole, on failure it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    os.chmod(temporary, 0o777 & ~_umask())
    try:
        yield temporary
        if path.exists():  # killed between the two, `clear_unfinished` moves the old one back
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent)) / "old"
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old.parent, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def clear_unfinished(folder: str | Path) -> None:
    """Removes what processes left behind that were killed while they wrote or replaced something in `folder`.

    What was moved aside and is not yet replaced is moved back.
    """
    for aside in Path(folder).glob(".*.old"):
        target = aside.with_name(aside.name[1:].rpartition(".")[0].rpartition(".")[0])
        if (aside / "old").exists() and not target.exists():
            os.replace(aside / "old", target)
    for pattern in (".*.tmp", ".*.old"):
        for left in Path(folder).glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any, indent: int | None = 2) -> None:
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, sort_keys=True) + "\n")


def read_object(path: str | Path) -> dict[str, Any]:
    """The JSON object of a file. Raises OSError if it cannot be read, ValueError if it holds something else."""
    body = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(body, dict):
        raise ValueError("it holds no JSON object")
    return body


def json_differences(one: Any, other: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """(key, value in `one`, value in `other`) of each place where two JSON values differ, in the order of keys."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from json_differences(one.get(name), other.get(name), (*key, name))
    elif one != other:
        yield key, one, other


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_json(value: Any) -> str:
    """Hash of a JSON value that depends on its content only, not on key order or white space."""
    return sha256_text(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


def sha256_folder(path: str | Path) -> str:
    """Hash over the sorted relative names and contents of all files below `path`."""
    root = Path(path)
    return sha256_json({str(file.relative_to(root)): sha256_file(file) for file in files_below(root)})


def files_below(path: str | Path) -> list[Path]:
    """Every file below a folder, sorted. Folders that are symbolic links are entered as well, unless they lead back."""

    def walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
        real = folder.resolve()
        if real in above:
            return
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, (*above, real))
            elif entry.is_file():
                yield entry

    return sorted(walk(Path(path), ())) if Path(path).is_dir() else []


def is_utf8(path: Path) -> bool:
    """Whether a path's bytes are UTF-8: others go into no JSON file."""
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


SUMS = "SHA256SUMS"  # name of a folder's list of hashes


def write_sums(path: str | Path, files: Iterable[Path]) -> None:
    """Writes the hashes of files below the folder of `path`, as `sha256sum --check` reads them.

    A name may hold any byte: it is written as it is, a backslash or a line's end in it as `sha256sum` escapes them.
    """
    path = Path(path)
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        for file in files:
            name = os.fsencode(file.relative_to(path.parent).as_posix())
            escaped = name.replace(b"\\", rb"\\").replace(b"\n", rb"\n")
            mark = b"\\" if escaped != name else b""
            stream.write(mark + sha256_file(file).encode() + b"  " + escaped + b"\n")


def read_sums(path: str | Path) -> dict[str, str]:
    """File name -> hash, as `write_sums` wrote them; of a damaged file what can be read."""
    found = {}
    for line in Path(path).read_bytes().split(b"\n"):
        digest, separator, name = line.partition(b"  ")
        if digest.startswith(b"\\"):
            digest, name = digest[1:], re.sub(rb"\\(.)", lambda m: b"\n" if m[1] == b"n" else m[1], name)
        if separator:
            found[os.fsdecode(name)] = digest.decode(errors="replace")
    return found


def changed_since(sums: str | Path) -> list[Path]:
    """The files that `write_sums` listed in `sums` and that are missing or have another hash now, sorted."""
    stated = {Path(sums).parent / name: digest for name, digest in read_sums(sums).items()}
    return sorted(path for path, digest in stated.items() if not path.is_file() or sha256_file(path) != digest)


def give_usual_rights(folder: str | Path) -> None:
    """Gives the files of a folder the rights that the umask gives to new ones."""
    for path in Path(folder).iterdir():
        if path.is_file():
            os.chmod(path, 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
