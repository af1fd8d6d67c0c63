"""Which code, which packages and which processor made a result."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from functools import cache
from glob import glob
from importlib import metadata
from pathlib import Path

from hgpo import __version__

PACKAGE = Path(__file__).resolve().parent
ENGINES = ("alfworld", "textworld", "vllm", "deepspeed", "ray", "statsmodels")


@cache
def code_commit() -> str:
    """The commit of the running code: 40 hexadecimal digits, followed by `-dirty` if the package differs from it.

    Looked for in this order: the environment variable HGPO_COMMIT (set in container images), the git checkout that
    tracks this package, the commit that pip recorded when it installed from git. `unknown` if none of them says.
    """
    return os.environ.get("HGPO_COMMIT") or _git_commit() or _installed_commit() or "unknown"


@cache
def package_versions() -> dict[str, str]:
    """Installed versions of Python, this package, its declared requirements, and the engines that are present."""
    declared = [line for line in _requirements() if "extra ==" not in line]
    required = [re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0] for line in declared]
    found = {"python": platform.python_version(), "hgpo": __version__}
    for name in sorted({*required, *ENGINES}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def hardware() -> dict[str, str]:
    """The processor, the machine's NVIDIA cards, and the widest vectors that torch uses, if it has been imported.

    Sums are rounded in another order on other processors and cards, from which other numbers follow.
    """
    found = {"processor": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()}
    cards = sorted(glob("/proc/driver/nvidia/gpus/*/information"))
    if cards:
        found["gpus"] = ", ".join(_field(card, "Model") or "unknown" for card in cards)
    if "torch" in sys.modules:
        found["vectors"] = sys.modules["torch"].backends.cpu.get_cpu_capability()
    return found


def _field(file: str, name: str) -> str | None:
    """The first `name: value` of a file of the kernel; None if there is none."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _requirements() -> list[str]:
    """What this package declares to need: as installed, or, run from a checkout, as its pyproject.toml says."""
    try:
        return metadata.requires("hgpo") or []
    except metadata.PackageNotFoundError:
        project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return list(project["dependencies"])


def _git_commit() -> str | None:
    def git(*arguments: str) -> str:
        result = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        return result.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # a checkout around an installed copy is not its source
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _installed_commit() -> str | None:
    try:
        origin = metadata.distribution("hgpo").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return json.loads(origin).get("vcs_info", {}).get("commit_id") if origin else None
