"""Results pinned with DVC: data, checkpoints and episodes by their hashes, fetched again in a fresh clone.

`pins/<experiment>/` holds one folder for each of PARTS, laid out as in the results and data folders, and one `.dvc`
file beside each. Git tracks the `.dvc` files, DVC the folders. The results folder itself stays ignored by git: DVC
overlooks `.dvc` files in ignored folders.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from hgpo.config import Config, plan_runs
from hgpo.errors import DataError, HgpoError
from hgpo.files import write_text

PARTS = {
    "data": "prepared data of each environment, with its panels",
    "checkpoints": "starting and final checkpoints, with their metrics",
    "episodes": "evaluation episodes",
    "record": "resolved configuration, manifest, tables and figures",
}
SETTINGS = {"cache.type": "reflink,hardlink,symlink,copy"}
IGNORED = ".snakemake_timestamp\n*.tmp\n"
COPIED_BELOW = 4 << 20  # bytes; smaller files are copied, larger ones hard-linked where the file system can


def initialise(folder: Path, remote: str | None) -> None:
    """Makes the project a DVC project: link types for the cache, what to ignore, the remote called `pins`."""
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
        if remote is not None and f"url = {remote}\n" not in done:
            dvc("remote", "add", "--default", "--force", "pins", str(remote))
            dvc("remote", "modify", "pins", "verify", "true")  # a changed object is found when it is fetched
    folder.mkdir(parents=True, exist_ok=True)


def add(config: Config) -> list[Path]:
    """Pins everything of a finished experiment and pushes it to the remote, if there is one; the `.dvc` files.

    Raises DataError naming the first run or evaluation that is not there.
    """
    home = Path(config.dvc.folder) / config.name
    initialise(home, config.dvc.remote)
    for part in PARTS:
        fresh = home / f".{part}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        for source, place in contents(config, part):
            if not source.exists():
                raise DataError(f"nothing to pin at {source}", "finish the experiment first, then pin it")
            lay(source, fresh / place)
        shutil.rmtree(home / part, ignore_errors=True)
        fresh.rename(home / part)
    targets = [f"{home}/{part}" for part in PARTS]
    with _one_at_a_time():
        dvc("add", *targets)
        if remotes():
            dvc("push", *(f"{target}.dvc" for target in targets))
    return [Path(f"{target}.dvc") for target in targets]


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
        with _one_at_a_time():
            try:
                dvc("checkout", *map(str, pins))
            except HgpoError:
                dvc("pull", *map(str, pins))
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
        for path in sorted(source.rglob("*")):
            if path.is_file() and path.name != ".snakemake_timestamp":
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


def remotes() -> list[str]:
    return [line.split()[0] for line in dvc("remote", "list").splitlines() if line.strip()]


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
    if arguments[0] in ("pull", "push", "fetch"):
        mend = "is the remote there? `dvc remote list` names it; on the machine that has the files: `dvc push`"
    else:
        mend = "see `dvc doctor`"
    raise DataError(f"dvc {' '.join(arguments)} failed:\n  {text}", mend)


def _one_at_a_time() -> FileLock:
    """DVC commands at the same time fail on DVC's own lock: ours waits."""
    return FileLock(".dvc-hgpo.lock", timeout=3600)
