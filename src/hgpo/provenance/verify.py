"""Does a results folder still hold what its manifest says, and do its episodes still give its tables?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgpo.config import Config, plan_runs
from hgpo.envs.preparation import MARKER, verify_data
from hgpo.errors import HgpoError
from hgpo.files import SUMS, changed_since, read_sums
from hgpo.provenance import crate
from hgpo.provenance.manifest import checkpoint_folder, config_hash, file_hashes, read_manifest
from hgpo.reporting.build import make_tables
from hgpo.reporting.collect import Results, load_results, read_json, warm_start_runs
from hgpo.reporting.table import rendered


@dataclass
class Verification:
    """differences: what is not as it was. absent: what could not be checked here. checked: counts of what was."""

    differences: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)


def verify(config: Config) -> Verification:
    """Hashes every file again, computes every table again from the episodes, and compares with the manifest.

    Data that are here are hashed against their panels, report and viewer against the hashes written with them.

    Raises DataError if there is no manifest or if the manifest itself was changed.
    """
    manifest, found = read_manifest(config.folder), Verification()
    _verify_config(config, manifest, found)
    _verify_files(config, manifest, found)
    _verify_checkpoints(config, manifest, found)
    _verify_data(config, found)
    _verify_pages(config.folder, found)
    try:
        results = load_results(config)
        _verify_panels(results, manifest, found)
        _verify_tables(results, found)
    except HgpoError as error:
        found.differences.append(f"the tables cannot be computed again: {error.message}")
    return found


def config_differences(one: Any, other: Any, key: str = "") -> list[str]:
    """Where two configurations differ, as `key: X there, Y here`."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [d for k in keys for d in config_differences(one.get(k), other.get(k), f"{key}.{k}".lstrip("."))]
    return [] if one == other else [f"{key}: {one!r} there, {other!r} here"]


def _verify_config(config: Config, manifest: dict[str, Any], found: Verification) -> None:
    if config_hash(config) != manifest["config_hash"]:
        for difference in config_differences(manifest["config"], config.model_dump(mode="json")):
            found.differences.append(f"configuration: {difference}")


def _verify_files(config: Config, manifest: dict[str, Any], found: Verification) -> None:
    now, then = file_hashes(config), manifest["files"]
    for name in sorted(now.keys() | then.keys()):
        if name not in now and "/rollouts/" in name and not (config.folder / name).parent.exists():
            found.absent.append(name)  # rollouts are not pinned
        elif name not in now:
            found.differences.append(f"{name} is missing")
        elif name not in then:
            found.differences.append(f"{name} was not there when the manifest was written")
        elif now[name] != then[name]:
            found.differences.append(
                f"{name} was changed: sha256 {now[name][:12]}, the manifest says {then[name][:12]}"
            )
    found.checked["files"] = len(then)
    if now == then and _read(config.folder / crate.NAME) != crate.metadata(config.folder, manifest):
        found.differences.append(f"{crate.NAME} is not the one that belongs to the manifest")


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


def _verify_pages(folder: Path, found: Verification) -> None:
    """The report and the viewer's page, against the hashes that were written with them."""
    report, viewer = folder / "report.html", folder / "viewer"
    for sums, files in ((Path(f"{report}.sha256"), [report]), (viewer / SUMS, sorted(viewer.rglob("*")))):
        now = {file for file in files if file.is_file() and file != sums and not file.name.startswith(".")}
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
        then, folder = manifest["checkpoints"].get(str(run)), checkpoint_folder(config, run)
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
            found.differences.append(f"the checkpoint {folder} was changed: {now[:12]}, evaluated was {then[:12]}")
    found.checked["checkpoints"] = checked


def _verify_tables(results: Results, found: Verification) -> None:
    made, _ = make_tables(results)
    folder = results.config.folder / "tables"
    for table in made:
        for ending, text in rendered(table).items():
            path = folder / f"{table.name}.{ending}"
            if path.exists() and path.read_bytes() != text.encode("utf-8"):
                found.differences.append(f"tables/{path.name} is not what the episodes give{_where(path, text)}")
    found.checked["tables"] = len(made)
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
