"""Does a results folder still hold what its manifest says, and do its episodes still give its tables?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgpo.config import Config, Run, Training, load_config, plan_runs
from hgpo.config.experiment import parse_config
from hgpo.envs.preparation import MARKER, verify_data
from hgpo.errors import ConfigError, HgpoError
from hgpo.files import SUMS, changed_since, files_below, json_differences, read_sums
from hgpo.provenance import crate
from hgpo.provenance.manifest import CONFIG, REPORT, VIEWER, checkpoint_folder, file_hashes, read_manifest
from hgpo.reporting.build import make_tables
from hgpo.reporting.collect import WARM_START, Results, data_away, load_results, read_json, warm_start_runs
from hgpo.reporting.table import rendered

# Settings that no result depends on: where things lie, where and how fast jobs run, what is kept or sent elsewhere. A
# `*` stands for any name. Of how a model is run, DECIDING is part of what makes a training run the one that it is.
ASIDE = [
    *(("results",), ("data", "directory"), ("containers",), ("dvc",), ("tracking",), ("evaluation", "batch_size")),
    *(("models", "*", part) for part in ("gpus", "engine", "learner", "placement")),
]
DECIDING = {"engine": ("kind", "arguments"), "learner": ("kind", "zero_stage"), "placement": ("learner_ranks",)}


@dataclass
class Verification:
    """differences: what is not as it was. absent: what could not be checked here. checked: counts of what was.

    aside: settings that are others than then, but decide no result.
    """

    differences: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)


def verify(config: Config) -> Verification:
    """Hashes every file again, computes every table again from the episodes, and compares with the manifest.

    Data that are here are hashed against their panels, report and viewer against the hashes written with them.

    Raises DataError if there is no manifest or if the manifest itself was changed.
    """
    manifest = read_manifest(config.folder)
    found = verify_record(config, manifest)
    _verify_pages(config.folder, manifest, found)
    try:
        results = load_results(config)
        _verify_panels(results, manifest, found)
        _verify_tables(results, found)
    except HgpoError as error:
        found.differences.append(f"the tables cannot be computed again: {error.message}")
    return found


def verify_record(config: Config, manifest: dict[str, Any]) -> Verification:
    """The part of `verify` that computes nothing: settings, files, checkpoints and data against their hashes."""
    found = Verification()
    _verify_config(config, manifest, found)
    _verify_files(config, manifest, found)
    _verify_checkpoints(config, manifest, found)
    _verify_data(config, found)
    return found


def config_differences(one: Any, other: Any) -> list[str]:
    """Where two configurations differ, as `key: X there, Y here`."""
    return [_in_words(*difference) for difference in json_differences(one, other)]


def _in_words(key: tuple[str, ...], one: Any, other: Any) -> str:
    return f"{'.'.join(key)}: {one!r} there, {other!r} here"


def _decides(key: tuple[str, ...]) -> bool:
    """Whether results depend on a setting."""
    if key[0] == "models" and len(key) > 3 and key[3] in DECIDING.get(key[2], ()):
        return True
    training = [
        (*section, name) for section in (("training",), ("environments", "*", "training")) for name in Training.NEUTRAL
    ]
    return not any(
        len(key) >= len(aside) and all(a in ("*", part) for a, part in zip(aside, key, strict=False))
        for aside in [*ASIDE, *training]
    )


def _since(manifest: dict[str, Any], config: Config) -> Iterator[tuple[bool, str]]:
    """What differs between the manifest's configuration and `config`, and whether results depend on it."""
    then = manifest["config"]
    with suppress(ConfigError):  # keys that are newer than the manifest have their default
        then = parse_config(then).model_dump(mode="json")
    for key, one, other in json_differences(then, config.model_dump(mode="json")):
        yield _decides(key), _in_words(key, one, other)


def _verify_config(config: Config, manifest: dict[str, Any], found: Verification) -> None:
    for decides, text in _since(manifest, config):
        if decides:
            found.differences.append(f"configuration: {text}")
        else:
            found.aside.append(text)


def _rewritten(config: Config, manifest: dict[str, Any]) -> list[str]:
    """What the configuration file of the results folder says that the manifest does not."""
    try:
        return [text for decides, text in _since(manifest, load_config(config.folder / CONFIG)) if decides]
    except ConfigError as error:
        return [error.message]


def _verify_files(config: Config, manifest: dict[str, Any], found: Verification) -> None:
    now, then = file_hashes(config), manifest["files"]
    for name in sorted(now.keys() | then.keys()):
        if name not in now and "/rollouts/" in name and not (config.folder / name).parent.exists():
            found.absent.append(name)  # rollouts are not pinned
        elif name not in now:
            found.differences.append(f"{name} is missing")
        elif name not in then:
            found.differences.append(f"{name} was not there when the manifest was written")
        elif name == CONFIG and now[name] != then[name]:
            found.differences += [f"{name} was changed: {text}" for text in _rewritten(config, manifest)]
        elif now[name] != then[name]:
            found.differences.append(
                f"{name} was changed: sha256 {now[name][:12]}, the manifest says {then[name][:12]}"
            )
    found.checked["files"] = len(then)
    if now.keys() == then.keys() and all(now[name] == then[name] for name in now if name != CONFIG):
        stated, right = _read(config.folder / crate.NAME), crate.metadata(config.folder, manifest)
        if _sizes_aside(stated) != _sizes_aside(right):
            found.differences.append(f"{crate.NAME} is not the one that belongs to the manifest")


def _sizes_aside(body: Any) -> Any:
    """A crate without the size of the configuration file, which may say the same in other words."""
    if isinstance(body, dict):
        aside = {"contentSize"} if body.get("@id") == CONFIG else set()
        return {key: _sizes_aside(value) for key, value in body.items() if key not in aside}
    return [_sizes_aside(value) for value in body] if isinstance(body, list) else body


def _verify_panels(results: Results, manifest: dict[str, Any], found: Verification) -> None:
    for where, then in manifest["panels"].items():
        if where not in results.panels:
            found.absent.append(f"the panel of {where}")
        elif results.panels[where].hash != then:
            found.differences.append(f"the panel of {where} is {results.panels[where].hash[:12]}, was {then[:12]}")
    found.checked["panels"] = len(results.panels)


def _verify_data(config: Config, found: Verification) -> None:
    """Every task's data, hashed anew, against the panels."""
    tasks = 0
    for environment in config.matrix.environments:
        folder = config.data_folder(environment)
        if not (folder / MARKER).is_file():
            found.absent.append(f"the data {folder}")
            continue
        try:
            panels = verify_data(config, environment)
        except HgpoError as error:
            found.differences.append(error.message)
            continue
        tasks += len({task.id for panel in panels.values() for task in panel.tasks})
    found.checked["tasks' data"] = tasks


def _verify_pages(folder: Path, manifest: dict[str, Any], found: Verification) -> None:
    """The report and the viewer's page, against the hashes that were written with them."""
    report, viewer = folder / REPORT, folder / VIEWER
    for page, sums, files in (
        (REPORT, Path(f"{report}.sha256"), [report]),
        (VIEWER, viewer / SUMS, files_below(viewer)),
    ):
        now = {file for file in files if file.is_file() and file != sums and not file.name.startswith(".")}
        if not now and not sums.exists():
            if page == REPORT and page in manifest.get("pages", []):
                found.differences.append(f"{page} is missing; it was there when the manifest was written")
            else:
                found.absent.append(page)  # the viewer's page is not pinned
            continue
        if not sums.exists():
            found.absent += (
                [f"{sums.parent}: there are no hashes of the {len(now)} files in {sums.name}"] if now else []
            )
            continue
        then = {sums.parent / name for name in read_sums(sums)}
        for file in changed_since(sums):
            what = "was changed: its hash is not the one in" if file in now else "is missing; it is named in"
            found.differences.append(f"{file.relative_to(folder).as_posix()} {what} {sums.name}")
        for file in sorted(now - then):
            found.differences.append(f"{file.relative_to(folder).as_posix()} is not in {sums.name}")
        found.checked["pages"] = found.checked.get("pages", 0) + len(then)


def _verify_checkpoints(config: Config, manifest: dict[str, Any], found: Verification) -> None:
    from hgpo.rollout.policy import policy_hash

    checked = 0
    for run in [*plan_runs(config), *warm_start_runs(config)]:
        folder = checkpoint_folder(config, run)
        then, where = manifest["checkpoints"].get(str(run)), "evaluated was"
        if then is None:
            then, where = _recorded(config, run), "its record says"
        if then is None:
            continue
        if not (folder / "config.json").exists():
            found.absent.append(f"the checkpoint {folder}")
            continue
        try:
            now = policy_hash(folder)
        except HgpoError as error:
            found.differences.append(error.message)
            continue
        checked += 1
        if now != then:
            found.differences.append(f"the checkpoint {folder} was changed: {now[:12]}, {where} {then[:12]}")
    found.checked["checkpoints"] = checked


def _recorded(config: Config, run: Run) -> str | None:
    """The hash of a checkpoint that was not evaluated, as it was recorded when it was written."""
    started = run.method == WARM_START
    path = (run.start_folder(config) / "checkpoint.json") if started else (run.folder(config) / "finished.json")
    stated = (_read(path) or {}).get("hash" if started else "checkpoint_hash")
    return stated if isinstance(stated, str) else None


def _verify_tables(results: Results, found: Verification) -> None:
    made, _ = make_tables(results)
    folder = results.config.folder / "tables"
    absent = [str(results.config.data_folder(name)) for name in data_away(results.config)]
    checked = 0
    for table in made:
        differences = [
            f"tables/{path.name} is not what the episodes give{_where(path, text)}"
            for ending, text in rendered(table).items()
            if (path := folder / f"{table.name}.{ending}").exists() and path.read_bytes() != text.encode("utf-8")
        ]
        if differences and absent and table.name == "leakage":
            found.absent.append(f"the table {table.name}, which is made from the data: {', '.join(absent)}")
            continue
        found.differences += differences
        checked += 1
    found.checked["tables"] = checked
    written = (_read(folder / "tables.json") or {}).get("written", {})
    for name in sorted(set(written) - {table.name for table in made}):
        found.absent.append(f"what the table {name} is made from")


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON file, None if it is not there or is damaged: then its hash or the comparison with it says so."""
    try:
        return read_json(path)
    except HgpoError:
        return None


def _where(path: Path, text: str) -> str:
    before, after = path.read_text(encoding="utf-8", errors="replace").splitlines(), text.splitlines()
    for number, (old, new) in enumerate(zip(before, after, strict=False), start=1):
        if old != new:
            return f", first in line {number}"
    return f", {len(before)} lines instead of {len(after)}"
