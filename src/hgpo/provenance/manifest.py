"""The manifest of a results folder: what every file and every table row was made from.

`manifest.json` holds the configuration, the code and package versions, the container, the hash of every file, and
for each row of each table the episodes (or metrics) it is computed from, with checkpoint, panel and prompt. Its last
key is the hash of all the others, so that a change of the manifest itself shows as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hgpo.config import Config, Run, plan_runs
from hgpo.errors import DataError
from hgpo.files import sha256_file, sha256_json, write_json
from hgpo.provenance.crate import write_crate
from hgpo.reporting.build import make_tables
from hgpo.reporting.collect import WARM_START, Results, data_away, load_results, read_json
from hgpo.reporting.table import FORMATS, Table
from hgpo.versions import PACKAGE, code_commit, package_versions

NAME = "manifest.json"
CONFIG = "config.yaml"  # the resolved configuration, as the workflow wrote it
FORMAT = 2  # count up when a key changes
KINDS = {"name": str, "date": str, "config": dict, "config_hash": str, "code": dict, "container": dict, "rows": list}
HASHES = ("files", "panels", "checkpoints")  # of each, the hash by name
REPORT, VIEWER = "report.html", "viewer"  # made anew at will, with hashes of their own: not among `files`
ROW_KEYS = ("model", "environment", "split", "history")
HASHED = (
    "episodes/**/*.parquet",
    "tables/*.*",
    "figures/*.*",
    "analysis/*.csv",
    "runs/**/finished.json",
    "runs/**/metrics.jsonl",
    "runs/**/rollouts/*.parquet",
    "start/**/checkpoint.json",
    "checks/*.json",
    "container.json",
    CONFIG,
)


def write_manifest(config: Config) -> Path:
    """Writes `results/<name>/manifest.json` and, beside it, the same as an RO-Crate; returns the manifest's path.

    Raises DataError if there are no tables, if they are not those that the episodes give, if a run was trained with
    other settings, or if the manifest that is there names panels that are not here.
    """
    check_settings(config)
    results = load_results(config)
    lost = sorted((read_json(config.folder / NAME) or {}).get("panels", {}).keys() - results.panels.keys())
    if lost and (away := data_away(config)):
        raise DataError(
            f"{config.folder / NAME} names the panels of {', '.join(lost)}; the data of {', '.join(away)} are not here",
            "run `hgpo prepare-data` first, or delete the manifest to write one that does not know them",
        )
    made, _ = make_tables(results)
    for table in made:
        absent = [e for e in FORMATS if not (config.folder / "tables" / f"{table.name}.{e}").exists()]
        if absent:
            raise DataError(f"the table {table.name}.{absent[0]} has not been written", "run `hgpo tables` first")
    body = {
        "format": FORMAT,
        "name": config.name,
        "date": datetime.now(UTC).date().isoformat(),
        "config": config.model_dump(mode="json"),
        "config_hash": config_hash(config),
        "code": {"commit": code_commit(), "packages": package_versions(), "locks": lock_hashes()},
        "container": read_json(config.folder / "container.json") or {"enabled": False},
        "files": file_hashes(config),
        "pages": [page for page in (REPORT, VIEWER) if (config.folder / page).exists()],
        "panels": {where: panel.hash for where, panel in sorted(results.panels.items())},
        "checkpoints": _checkpoints(results),
        "rows": [row for table in made for row in _rows(config, results, table)],
    }
    path = config.folder / NAME
    write_json(path, body | {"hash": sha256_json(body)})
    write_crate(config.folder, body)
    return path


def check_settings(config: Config) -> None:
    """Raises DataError if a finished run was trained with other settings than those of the configuration."""
    from hgpo.training.checkpoint import compare
    from hgpo.training.plan import settings_of

    for run in plan_runs(config):
        then = (read_json(run.folder(config) / "finished.json") or {}).get("identity")
        now = json.loads(json.dumps(settings_of(config, run)))
        if then and (differences := compare({key: then.get(key) for key in now}, now)):
            raise DataError(
                f"{run} was trained with other settings: {differences[0]}",
                "set that back; what is to be trained with the new ones needs another `name`",
            )


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a results folder. Raises DataError if it is missing, unreadable, no manifest, or was changed."""
    body = read_json(folder / NAME)
    if body is None:
        raise DataError(
            f"there is no {NAME} in {folder.absolute()}",
            "run `hgpo manifest` first; for results of others, run this in the folder that their `results` lie in",
        )
    stated = body.pop("hash", None)
    if stated != sha256_json(body):
        raise DataError(
            f"{folder / NAME} was changed after it was written",
            "take it once more from where it was published; if these are your own results, run `hgpo manifest` again",
        )
    if body.get("format", FORMAT) != FORMAT:
        raise DataError(f"{folder / NAME} has format {body['format']}, not {FORMAT}", "run `hgpo manifest` again")
    kinds = {"format": int} | KINDS | dict.fromkeys(HASHES, dict)
    wrong = [key for key, kind in kinds.items() if not isinstance(body.get(key), kind)]
    wrong += [key for key in HASHES if key not in wrong and not all(isinstance(v, str) for v in body[key].values())]
    if wrong:
        raise DataError(
            f"{folder / NAME} is no manifest: it lacks {', '.join(wrong)}, or has something else there",
            "run `hgpo manifest` again",
        )
    return body


def config_hash(config: Config) -> str:
    """Hash of the configuration's content, independent of where its file lies and how it is written."""
    return sha256_json(config.model_dump(mode="json"))


def file_hashes(config: Config) -> dict[str, str]:
    """sha256 of every file of the results folder that tables and figures are made from or consist of."""
    folder = config.folder
    found = {path for pattern in HASHED for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(found)}


def lock_hashes() -> dict[str, str]:
    """sha256 of each lock of package versions in the source tree of the running code; none if it was installed."""
    locks = PACKAGE.parents[1] / "requirements"
    return {path.name: sha256_file(path) for path in sorted(locks.glob("*.txt"))}


def checkpoint_folder(config: Config, run: Run) -> Path:
    """Where the checkpoint that was evaluated as `run` lies."""
    return run.start_folder(config) if run.method == WARM_START else run.folder(config) / "final"


def _checkpoints(results: Results) -> dict[str, str]:
    """Hash of the checkpoint that each run was evaluated with."""
    return {
        str(Run(**metadata["run"])): metadata["checkpoint_hash"]
        for _, metadata in sorted(results.episodes.files.items())
    }


def _rows(config: Config, results: Results, table: Table) -> Iterator[dict[str, Any]]:
    """Each row of a table with the files it is made from."""
    if table.name == "leakage":
        return
    for number, row in enumerate(table.data.to_dict("records")):
        named = {key: row[key] for key in ROW_KEYS if key in row and row[key] == row[key]}
        methods = [row[key] for key in ("method", "first", "second") if key in row]
        if "gain" in row:
            methods.append(WARM_START)
        sources = _metrics(config, results, named, methods) if table.name == "cost" else _episodes(
            config, results, named, methods
        )  # fmt: skip
        if sources:
            yield {"table": table.name, "row": number} | named | {"methods": methods, "made_from": sources}


def _episodes(config: Config, results: Results, named: dict[str, Any], methods: list[str]) -> list[dict[str, Any]]:
    chain = []
    for path, metadata in sorted(results.episodes.files.items()):
        run = metadata["run"]
        facts = run | {"split": metadata["split"]}
        if run["method"] in methods and all(facts[key] == value for key, value in named.items()):
            finished = results.finished.get(Run(**run), {})
            chain.append(
                {
                    "episodes": path.relative_to(config.folder).as_posix(),
                    "checkpoint": metadata["checkpoint_hash"],
                    "panel": metadata["panel_hash"],
                    "prompt": metadata["prompt"],
                    "evaluation_commit": metadata.get("commit", "unknown"),
                    "start": finished.get("start_hash"),
                    "training_config": finished.get("config_hash"),
                    "training_commit": finished.get("commit"),
                }
            )
    return chain


def _metrics(config: Config, results: Results, named: dict[str, Any], methods: list[str]) -> list[dict[str, Any]]:
    return [
        {"metrics": (run.folder(config) / "metrics.jsonl").relative_to(config.folder).as_posix()}
        for run in results.metrics
        if run.method in methods and all(getattr(run, key) == value for key, value in named.items())
    ]
