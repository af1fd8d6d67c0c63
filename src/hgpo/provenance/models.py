"""Models from the hub: fetched once, where there is a network, at a fixed commit, and checked file by file."""

from __future__ import annotations

import hashlib
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hgpo.config import Model
from hgpo.errors import ConfigError, DataError
from hgpo.files import sha256_file
from hgpo.rollout.policy import HUB_FILES


def is_hub_name(source: str) -> bool:
    """Whether a model of the hub could be called so: `owner/name` or `name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return True


def fetch_model(name: str, model: Model) -> dict[str, Any]:
    """Puts a hub model into the cache (HF_HOME) and checks the hashes that the hub names; what was found.

    `embedded` models and folders need no fetching: of a folder the files are hashed.

    Raises ConfigError for a folder that is not there or a hub model without a revision, DataError if it cannot be
    fetched or a file is not as named.
    """
    if model.source == "embedded":
        return {"source": "embedded"}
    if Path(model.source).is_dir():
        return {"source": model.source, "files": hashes(Path(model.source))}
    if not is_hub_name(model.source):
        raise ConfigError(
            f"models.{name}.source: there is no folder {model.source}, and no model of the hub is called so",
            "name a folder with a checkpoint, or a model of the hub",
        )
    if model.revision is None:
        raise ConfigError(
            f"models.{name}.revision: missing; a hub model without it may change",
            "name the commit of the hub checkpoint",
        )
    os.environ["HF_HUB_OFFLINE"] = "0"
    from huggingface_hub import HfApi, snapshot_download

    try:
        folder = Path(snapshot_download(model.source, revision=model.revision, allow_patterns=HUB_FILES))
        listed = HfApi().model_info(model.source, revision=model.revision, files_metadata=True).siblings or []
    except Exception as error:  # the hub's own errors, and those of three network libraries below it
        raise DataError(
            f"{model.source} at {model.revision} cannot be fetched: {type(error).__name__}: {error}",
            f"run it where there is a network, or set models.{name}.source to a folder with the checkpoint",
        ) from None
    found = hashes(folder)
    for file in listed:
        path = folder / file.rfilename
        if not any(fnmatch(file.rfilename, pattern) for pattern in HUB_FILES):
            continue
        if not path.is_file():
            raise DataError(f"{path} is missing; the hub lists it at {model.revision}", "fetch again")
        kind = "SHA-256" if file.lfs else "git hash"
        is_ = found[file.rfilename] if file.lfs else git_hash(path)
        named = file.lfs.sha256 if file.lfs else file.blob_id
        if named and is_ != named:
            raise DataError(
                f"{path} has the {kind} {is_}, the hub names {named}", f"remove {path.resolve()} and fetch again"
            )
    return {"source": model.source, "revision": model.revision, "folder": str(folder), "files": found}


def git_hash(path: Path) -> str:
    """The hash by which git, and with it the hub, knows a small file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder`, by relative path."""
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}
