"""Results pinned with DVC: data, checkpoints and episodes by their hashes, fetched again in a fresh clone.

`pins/<experiment>/` holds one folder for each of PARTS, laid out as in the results and data folders, and one `.dvc`
file beside each. Git tracks the `.dvc` files, DVC the folders. The results folder itself stays ignored by git: DVC
overlooks `.dvc` files in ignored folders.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from hgpo.config import Config, plan_baselines, plan_runs
from hgpo.errors import DataError, HgpoError
from hgpo.files import files_below, is_utf8, write_text
from hgpo.provenance.remote import REMOTE, cached, check_remote, default_remote, dvc, explain, forget_lists, set_remote

PARTS = {
    "data": "prepared data of each environment, with its panels",
    "checkpoints": "starting and final checkpoints, with their metrics",
    "episodes": "evaluation episodes",
    "record": "resolved configuration, manifest, tables, figures and report",
}
SETTINGS = {"cache.type": "reflink,hardlink,symlink,copy"}
IGNORED = ".snakemake_timestamp\n*.tmp\n"
COPIED_BELOW = 4 << 20  # bytes; smaller files are copied, larger ones hard-linked where the file system can


def initialise(folder: Path, remote: str | None, replace: bool = False) -> bool:
    """Makes the project a DVC project: link types for the cache, what to ignore, the default remote.

    Returns whether the remote is new. replace: take it instead of another one that is there. Raises DataError if there
    is another one: a project has one remote, and the files that were pushed to the other would not be found any more.
    """
    if not Path(".git").exists():
        raise DataError("there is no git repository in this folder", "DVC keeps its files in git: run `git init` first")
    with _one_at_a_time():
        if not Path(".dvc").is_dir():
            dvc("init", "--quiet")
        done = Path(".dvc/config").read_text(encoding="utf-8")
        for name, value in SETTINGS.items():
            if value not in done:
                dvc("config", name, value)
        ignore = Path(".dvcignore")
        text = ignore.read_text(encoding="utf-8") if ignore.exists() else ""
        if IGNORED not in text:
            write_text(ignore, text + IGNORED)
        new = remote is not None and set_remote(remote, replace)
    folder.mkdir(parents=True, exist_ok=True)
    return new


@dataclass
class Pinned:
    """The `.dvc` files of an experiment, and the remote that it was pushed to, if there is one."""

    files: list[Path]
    remote: str | None


def add(config: Config) -> Pinned:
    """Pins everything of a finished experiment and pushes it to the remote, if there is one.

    Raises DataError naming the first run or evaluation that is not there, or what is not as it was recorded.
    """
    home = Path(config.dvc.folder) / config.name
    for part in PARTS:
        for source, _ in contents(config, part):
            if not source.exists():
                raise DataError(f"nothing to pin at {source}", "finish the experiment first, then pin it")
    _check(config)
    new = initialise(home, config.dvc.remote)
    for part in PARTS:
        fresh = home / f".{part}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        for source, place in contents(config, part):
            lay(source, fresh / place)
        shutil.rmtree(home / part, ignore_errors=True)
        fresh.rename(home / part)
    targets = [f"{home}/{part}" for part in PARTS]
    files = [Path(f"{target}.dvc") for target in targets]
    with _one_at_a_time():
        dvc("add", *targets)
        remote = default_remote()
        if remote:
            _push(files, remote, new)
    return Pinned(files, remote)


def _check(config: Config) -> None:
    """Raises DataError if what is to be pinned is not whole, or not what its records say."""
    from hgpo.provenance.manifest import read_manifest
    from hgpo.provenance.verify import verify_record

    for run in [*plan_runs(config), *plan_baselines(config)]:
        for split in config.environment(run.environment).evaluation_splits:
            for seed in config.evaluation.seeds:
                if not (episodes := run.episodes(config, split, seed)).exists():
                    raise DataError(f"nothing to pin at {episodes}", "finish the experiment first, then pin it")
    verified = verify_record(config, read_manifest(config.folder))
    incomplete = [
        f"{what} is not whole" for what in verified.absent if "/rollouts/" not in what
    ]  # those are not pinned
    if found := [*verified.differences, *incomplete]:
        more = f" (and {len(found) - 1} more: `hgpo verify` lists them)" if len(found) > 1 else ""
        raise DataError(
            f"{config.folder} is not what was recorded, and is not pinned: {found[0]}{more}",
            "restore what was changed, or make it again; after making it again, run `hgpo manifest`",
        )


def _push(files: list[Path], remote: str, new: bool) -> None:
    """Pushes; a remote that was set just now for it is taken back if that fails."""
    try:
        if not new:
            check_remote(remote)
        dvc("push", *map(str, files))
        if forget_lists(files, remote):
            dvc("push", *map(str, files))
    except HgpoError as error:
        if new:
            dvc("remote", "remove", REMOTE)
        raise DataError(
            f"{files[0].parent} is pinned here, but not pushed to {remote}: {error.message}",
            error.hint if not new else "correct dvc.remote in the configuration, then run `hgpo pin add` again",
        ) from None


def pull(name: str, folder: Path = Path("pins"), offline: bool = False) -> Config:
    """Fetches a pinned experiment and lays it out as results and data; its configuration.

    offline: the pinned folders are there already, as in a review bundle; DVC is not asked.
    Files that are there already stay if they have the same content, and are named if they have another.
    """
    from hgpo.config import load_config

    home = folder / name
    pins = [home / f"{part}.dvc" for part in PARTS]
    absent = [str(pin) for pin in pins if not pin.exists()]
    if absent:
        known = sorted(path.name for path in folder.glob("*") if (path / "record.dvc").exists())
        raise DataError(f"{name!r} is not pinned here: no {absent[0]}", f"pinned are: {', '.join(known) or 'none'}")
    if not offline:
        _fetch(pins)
    if not (home / "record/config.yaml").exists():
        raise DataError(f"no {home / 'record'} here", f"hgpo pin pull {name}")
    config = load_config(home / "record/config.yaml")
    for kept in sorted((home / "record").iterdir()):
        lay(kept, config.folder / kept.name)
    for part in ("data", "checkpoints", "episodes"):
        for target, place in contents(config, part):
            source = home / part / place
            if not source.exists():
                raise DataError(f"{home / part} lacks {place}", f"dvc pull --force {home / part}.dvc")
            lay(source, target)
    age_markers(config)
    return config


def _fetch(pins: list[Path]) -> None:
    """Puts the pinned folders beside their pins, from the cache or else from the remote."""
    if not Path(".dvc/config").is_file():
        raise DataError(
            "this is no DVC project any more: .dvc/config is missing",
            "git checkout HEAD -- .dvc .dvcignore; or, if git does not have it: hgpo pin init --remote URL",
        )
    with _one_at_a_time():
        if cached(pins):
            try:
                dvc("checkout", *map(str, pins))
                return
            except HgpoError:
                pass
        remote = default_remote()
        if remote is None:
            raise DataError(
                f"{pins[0].parent} is not in the cache, and this project has no DVC remote to fetch it from",
                "hgpo pin init --remote URL, with the URL that it was pushed to",
            )
        check_remote(remote)
        failed = None
        for _ in range(2):  # after a mend the first pull still goes by the list that DVC remembers, and renews it
            try:
                dvc("pull", *map(str, pins))
                failed = None
                break
            except HgpoError as error:
                failed = error
        wrong = explain(pins, remote, failed)  # in any case: DVC takes a changed list of a folder's files for right
        if wrong is not None:
            raise wrong


def contents(config: Config, part: str) -> Iterator[tuple[Path, Path]]:
    """Pairs of a file or folder of the experiment and its place below the part's folder."""
    results = config.folder
    if part == "data":
        for environment in config.matrix.environments:
            yield config.data_folder(environment), Path(environment)
        for record in model_records(config):
            yield record, Path("models") / record.name
    elif part == "record":
        names = (
            "config.yaml",
            "container.json",
            "checks",
            "manifest.json",
            "ro-crate-metadata.json",
            "tables",
            "figures",
            "analysis",
            "report.html",
            "report.html.sha256",
        )
        for name in names:
            if (results / name).exists() or name == "config.yaml":
                yield results / name, Path(name)
    elif part == "checkpoints":
        for start in sorted({run.start_folder(config) for run in plan_runs(config)}):
            yield start, start.relative_to(results)
        for run in plan_runs(config):
            for name in ("final", "finished.json", "metrics.jsonl"):
                yield run.folder(config) / name, (run.folder(config) / name).relative_to(results)
    else:
        yield results / "episodes", Path("episodes")


def lay(source: Path, target: Path) -> None:
    """Puts a copy of a file or folder at `target`: small files copied, large ones linked.

    Raises DataError where another content lies already.
    """
    if source.is_dir():
        for path in files_below(source):
            if not is_utf8(path):
                raise DataError(f"{os.fsencode(path)!r}: DVC takes no name that is not UTF-8", "rename or remove it")
            if path.name != ".snakemake_timestamp":
                lay(path, target / path.relative_to(source))
        return
    if target.exists():
        if not same_content(source, target):
            raise DataError(f"{target} differs from the pinned {source}", "move it away, or work in a fresh clone")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.stat().st_size >= COPIED_BELOW:
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    shutil.copyfile(source, target)


def same_content(one: Path, other: Path) -> bool:
    from hgpo.files import sha256_file

    return one.stat().st_size == other.stat().st_size and sha256_file(one) == sha256_file(other)


def model_records(config: Config) -> list[Path]:
    """What `hgpo fetch-model` wrote about each model that is not made here."""
    folder = Path(config.data.directory) / "models"
    names = [name for name in config.matrix.models if config.models[name].trainable]
    return [folder / f"{name}.json" for name in names if config.models[name].source != "embedded"]


def age_markers(config: Config) -> None:
    """Dates the files that say "finished" in the order in which they were made, and older than all episodes: fetched
    files carry the date of the fetch, and Snakemake would take what arrived before its input for outdated."""
    episodes = [path.stat().st_mtime for path in (config.folder / "episodes").rglob("*.parquet")]
    before = min(episodes, default=0) - 60
    markers = [config.data_folder(name) / "prepared.json" for name in config.matrix.environments]
    markers += model_records(config)
    markers += [config.folder / "checks" / f"{name}.json" for name in config.matrix.environments]
    markers += [run.start_folder(config) / "checkpoint.json" for run in plan_runs(config)]
    markers += [run.folder(config) / "finished.json" for run in plan_runs(config)]
    for step, marker in enumerate(markers):
        if marker.exists() and episodes:
            os.utime(marker, (before + step / 1000, before + step / 1000))


def _one_at_a_time() -> FileLock:
    """DVC commands at the same time fail on DVC's own lock: ours waits."""
    return FileLock(".dvc-hgpo.lock", timeout=3600)
