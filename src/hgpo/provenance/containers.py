"""Apptainer images: built from a definition, known by their digest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hgpo.config.experiment import Containers
from hgpo.errors import DataError, HgpoError
from hgpo.files import atomic_path, sha256_file, write_sums
from hgpo.versions import code_commit

BASE = re.compile(r"^From: *(\S+)$", flags=re.MULTILINE)


def ensure_images(settings: Containers) -> dict[str, Any]:
    """Builds each image that is missing, verifies each that is there; returns the record for the manifest.

    Raises DataError for an image that is not the one its digest file names, HgpoError if it cannot be built.
    """
    if not settings.enabled:
        return {"enabled": False}
    pairs = [(settings.image, settings.definition)]
    if settings.train_image is not None:
        pairs.append((settings.train_image, settings.train_definition))
    return {"enabled": True, "images": [ensure_image(Path(image), Path(source)) for image, source in pairs]}


def ensure_image(image: Path, definition: Path) -> dict[str, Any]:
    """One image: its path, digest and definition. The digest lies beside it as IMAGE.sha256."""
    built = "verified" if image.exists() else "built now"
    if not image.exists():
        build_image(image, definition)
    digest = sha256_file(image)
    expected = digest_file(image)
    if not expected.exists():
        write_sums(expected, [image])
    elif expected.read_text(encoding="utf-8").split()[:1] != [digest]:
        raise DataError(
            f"{image} is not the image that {expected} names: its SHA-256 is {digest}",
            f"fetch the image again, or remove {image} and {expected} to build it anew",
        )
    record = {"path": str(image), "sha256": digest, "built": built, "bytes": image.stat().st_size}
    if definition.exists():
        record |= {"definition": str(definition), "definition_sha256": sha256_file(definition)}
    return record


def digest_file(image: Path) -> Path:
    return image.with_name(image.name + ".sha256")


def build_image(image: Path, definition: Path) -> None:
    """Builds `image` from `definition`, with the commit of the code and the hash of the lock as labels.

    HGPO_CONTAINER_BASE names a local root file system or image to start from instead of the definition's `From:`,
    for machines that reach no registry. HGPO_CONTAINER_OPTIONS holds further options of `apptainer build`.
    """
    program = shutil.which("apptainer") or shutil.which("singularity")
    if program is None:
        raise HgpoError("containers are enabled, but there is no apptainer on the PATH", "see docs/containers.md")
    if not definition.is_file():
        raise DataError(f"there is no definition at {definition}", "set containers.definition, or restore the file")
    text = definition.read_text(encoding="utf-8")
    base = os.environ.get("HGPO_CONTAINER_BASE")
    if base:
        text = BASE.sub(f"From: {base}", re.sub(r"^Bootstrap: *\S+$", "Bootstrap: localimage", text, flags=re.M))
    lock = re.search(r"requirements/([a-z-]+\.txt)", text)
    values = {"commit": code_commit(), "lock": sha256_file(Path("requirements") / lock[1]) if lock else "none"}
    with atomic_path(image) as temporary:
        source = temporary.with_suffix(".def")
        source.write_text(text, encoding="utf-8")
        temporary.unlink()
        command = [program, "build", *os.environ.get("HGPO_CONTAINER_OPTIONS", "").split()]
        for name, value in values.items():
            command += ["--build-arg", f"{name}={value}"]
        try:
            result = subprocess.run([*command, str(temporary), str(source)], capture_output=True, text=True)
        finally:
            source.unlink()
        if result.returncode != 0 or not temporary.exists():
            temporary.touch()
            last = "\n".join((result.stderr or result.stdout).strip().splitlines()[-15:])
            raise HgpoError(f"{definition} could not be built:\n{last}", "see docs/containers.md for offline builds")
