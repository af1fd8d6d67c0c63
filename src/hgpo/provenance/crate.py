"""The results folder as an RO-Crate (version 1.1, profile Process Run Crate 0.5), written from its manifest."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

from hgpo.files import write_json

NAME = "ro-crate-metadata.json"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
CONTEXT = ["https://w3id.org/ro/crate/1.1/context", {"sha256": "http://schema.org/sha256"}]
TYPES = {".parquet": "application/vnd.apache.parquet", ".jsonl": "application/jsonl", ".md": "text/markdown"}


def write_crate(folder: Path, manifest: dict[str, Any]) -> Path:
    """Writes `ro-crate-metadata.json` for a results folder and returns its path."""
    path = folder / NAME
    write_json(path, metadata(folder, manifest))
    return path


def metadata(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The crate: every file with its sha256, and the run that turned episodes into tables."""
    files, code = sorted(manifest["files"]), manifest["code"]
    versions = code.get("packages") or {}
    results = [name for name in files if name.startswith(("tables/", "figures/"))]
    inputs = [name for name in files if name not in results]
    entities: list[dict[str, Any]] = [
        {
            "@id": NAME,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"Results of {manifest['name']}",
            "description": "Evaluation episodes, training metrics, tables and figures of one experiment.",
            "datePublished": manifest["date"],
            "license": {"@id": "#licences"},
            "conformsTo": {"@id": PROFILE},
            "hasPart": [{"@id": name} for name in files],
            "mentions": {"@id": "#reporting"},
        },
        {
            "@id": "#licences",
            "@type": "CreativeWork",
            "name": "Licences of the parts",
            "description": "Metrics, tables and figures: Apache-2.0, as the code. The texts in episodes come from the "
            "environments and models, and keep their licences.",
        },
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        {
            "@id": "#hgpo",
            "@type": "SoftwareApplication",
            "name": "hgpo",
            "softwareVersion": f"{versions.get('hgpo', 'unknown')} ({code.get('commit', 'unknown')})",
        },
        {
            "@id": "#reporting",
            "@type": "CreateAction",
            "name": "Tables and figures from episodes and metrics",
            "description": "`hgpo tables` and `hgpo figures`, called by the workflow.",
            "endTime": manifest["date"],
            "instrument": {"@id": "#hgpo"},
            "object": [{"@id": name} for name in inputs],
            "result": [{"@id": name} for name in results],
        },
        *(_file(folder, name, manifest["files"][name]) for name in files),
    ]
    return {"@context": CONTEXT, "@graph": entities}


def _file(folder: Path, name: str, digest: str) -> dict[str, Any]:
    path = folder / name
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return {
        "@id": name,
        "@type": "File",
        "name": path.name,
        "encodingFormat": kind,
        "contentSize": str(path.stat().st_size),
        "sha256": digest,
    }
