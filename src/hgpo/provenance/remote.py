"""DVC as a program, the remote of a project, and what is wrong with a remote from which nothing comes.

A remote holds each file as an object, named by its MD5 hash: `files/md5/<two digits>/<the others>`. A pinned folder is
one more object, whose name ends in `.dir`: the list of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from hgpo.errors import DataError, HgpoError

REMOTE = "pins"  # DVC's name of the remote


def dvc(*arguments: str) -> str:
    """Runs DVC; its output. Raises HgpoError with what DVC said and what mends it."""
    try:
        command = [sys.executable, "-m", "dvc", *arguments]
        quiet = os.environ | {"DVC_NO_ANALYTICS": "1"}
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=quiet)
    except OSError as error:
        raise HgpoError(f"DVC does not start: {error}", "pip install -e '.[dvc]'") from None
    if result.returncode == 0:
        return result.stdout
    said = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    if any("No module named dvc" in line for line in said):
        raise HgpoError("DVC is not installed", "pip install -e '.[dvc]'")
    text = "\n  ".join(said[-8:])
    mend = "is the remote there? `dvc remote list` names it" if arguments[0] in ("pull", "push") else "see `dvc doctor`"
    raise DataError(f"dvc {' '.join(arguments)} failed:\n  {text}", mend)


def default_remote() -> str | None:
    """URL of the remote that DVC pushes to and fetches from; a folder as an absolute path."""
    name = dvc("config", "core.remote").strip()
    return (dvc("config", f"remote.{name}.url").strip() or None) if name else None


def local_folder(url: str) -> Path | None:
    """The folder that a remote is, None for one that is reached by a network."""
    return None if "://" in url.removeprefix("file://") else Path(url.removeprefix("file://"))


def set_remote(url: str, replace: bool) -> bool:
    """Makes `url` the project's default remote; whether it was not before."""
    before = default_remote()
    place = local_folder(url)
    wanted = str(place.resolve()) if place else url.rstrip("/")
    if before and wanted == (str(place.resolve()) if (place := local_folder(before)) else before.rstrip("/")):
        return False
    if before and not replace:
        raise DataError(
            f"this project's DVC remote is {before}, the configuration names another: {url}",
            f"set dvc.remote to {before}, or take the other for all pins: hgpo pin init --remote {url}",
        )
    if place := local_folder(url):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"the remote {url} cannot be made: {error.strerror}", "name another folder") from None
    dvc("remote", "add", "--default", "--force", REMOTE, url)
    dvc("remote", "modify", REMOTE, "verify", "true")  # a changed object is found when it is fetched
    return True


def check_remote(remote: str) -> None:
    place = local_folder(remote)
    if place is not None and not place.is_dir():
        raise DataError(
            f"the DVC remote {remote} is not there: no such folder",
            "mount or restore it; if it has moved: hgpo pin init --remote NEW_FOLDER",
        )


def explain(pins: list[Path], remote: str, error: HgpoError | None) -> DataError | None:
    """What to say after a pull that failed with `error`, or succeeded: which objects are wrong, and what mends that.

    None if there is neither an error nor a wrong object. Of a remote that is no folder, the objects that did not come
    are named; what is wrong with them is not known. If nothing came at all, it is not their fault.
    """
    lines: list[str] = []
    mends: list[str] = []
    reached = local_folder(remote) is not None or any(cached([pin]) for pin in pins)
    for pin in pins if reached else []:
        wrong = _wrong_objects(pin, remote)
        if not wrong:
            continue
        for place, (files, what) in list(wrong.items())[:5]:
            more = f" and {len(files) - 1} more" * (len(files) > 1)
            lines.append(f"{place} {what}: it is {files[0]}{more}, pinned by {pin}")
        lines += [f"... and {len(wrong) - 5} more objects of {pin}"] * (len(wrong) > 5)
        names = [*(place for place, (_, what) in wrong.items() if what != MISSING), _object(remote, _hash_of(pin))]
        delete = "rm -f" if local_folder(remote) else "delete"
        mends.append(f"{delete} {' '.join(shlex.quote(name) for name in dict.fromkeys(names))}")
        mends.append(f"dvc push {pin}   # where its files are in the cache; `hgpo pin add` where the results are")
    if not lines:
        return DataError(f"nothing comes from the DVC remote {remote}: {error.message}", error.hint) if error else None
    if error and not local_folder(remote):
        lines.append(error.message)
    return DataError(
        "not all that is pinned could be fetched:\n  " + "\n  ".join(lines),
        "delete what is wrong, and the folder's list (`.dir`): without that DVC takes its files for pushed; then push "
        "again:\n    " + "\n    ".join(mends),
    )


def forget_lists(pins: list[Path], remote: str) -> bool:
    """Removes from a folder remote the lists of pinned folders of which it lacks objects; whether there were any.

    DVC takes a folder whose list is there for pushed, whatever became of its files.
    """
    place, cache, forgotten = local_folder(remote), dvc("cache", "dir").strip(), False
    for pin in pins if place else []:
        top = _hash_of(pin)
        listed = json.loads(Path(_object(cache, top)).read_bytes())
        if not all(Path(_object(str(place), entry["md5"])).is_file() for entry in listed):
            Path(_object(str(place), top)).unlink(missing_ok=True)
            forgotten = True
    return forgotten


def cached(pins: list[Path]) -> bool:
    """Whether the lists of the pinned folders are in the cache. Without them DVC's checkout believes the remote's."""
    cache = dvc("cache", "dir").strip()
    return all(Path(_object(cache, _hash_of(pin))).is_file() for pin in pins)


MISSING = "is missing"


def _wrong_objects(pin: Path, remote: str) -> dict[str, tuple[list[str], str]]:
    """Place in the remote -> (the files that the object stands for, what is wrong), of a pin's objects not fetched."""
    cache = dvc("cache", "dir").strip()
    top = _hash_of(pin)
    found: dict[str, tuple[list[str], str]] = {}
    if (what := _fault(top, cache, remote)) is not None:
        return {_object(remote, top): ([f"the list of {pin.with_suffix('')}"], what)}
    listing = Path(_object(cache, top))
    listing = listing if listing.is_file() else Path(_object(remote, top))
    for entry in json.loads(listing.read_bytes()):
        if (what := _fault(entry["md5"], cache, remote)) is not None:
            files, _ = found.setdefault(_object(remote, entry["md5"]), ([], what))
            files.append(str(pin.with_suffix("") / entry["relpath"]))
    return found


def _fault(digest: str, cache: str, remote: str) -> str | None:
    """What is wrong with an object of the remote; None if it was fetched, or is as it should be."""
    if Path(_object(cache, digest)).is_file():
        return None
    if local_folder(remote) is None:
        return "was not fetched (it is missing, or has another content)"
    place = Path(_object(str(local_folder(remote)), digest))
    if not place.is_file():
        return MISSING
    with open(place, "rb") as stream:
        right = hashlib.file_digest(stream, "md5").hexdigest() == digest.removesuffix(".dir")
    return None if right else "has another content than its name says"


def _hash_of(pin: Path) -> str:
    return yaml.safe_load(pin.read_text(encoding="utf-8"))["outs"][0]["md5"]


def _object(root: str, digest: str) -> str:
    return f"{root.rstrip('/')}/files/md5/{digest[:2]}/{digest[2:]}"
