"""What this machine has for each use of the project, what is missing, and how to get it.

To import this module takes nothing but the standard library: it also says what is missing where nothing is installed.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hgpo.config import Config

USES = {
    "base": "demo, tests, evaluation and training on a CPU",
    "gpu": "training with GPUs",
    "slurm": "jobs on a Slurm cluster",
    "containers": "rules inside Apptainer images",
    "pins": "data and checkpoints pinned with DVC",
}
FREE_DISK_GB = {"base": 5, "gpu": 100}
OPEN_FILES = 4096
SOURCE = Path(__file__).resolve().parents[3]  # the project's folder, where the code runs from its sources
INSTALL = "make install, in the project's folder; then use .venv/bin/hgpo"
SHARED_MEMORY_GB = 1


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `mend` says how to get it and is empty if nothing is missing.

    by_itself: the workflow sees to it, so that it does not count as missing.
    """

    use: str
    subject: str
    found: str
    mend: str = ""
    by_itself: bool = False

    @property
    def fine(self) -> bool:
        return self.by_itself or not self.mend


def examine(uses: list[str], config: str | None = None) -> Iterator[Finding]:
    """Every finding for `uses` (keys of USES), and for the data and models of the configuration file, if one is named.

    Raises ConfigError if the configuration is wrong.
    """
    for use in uses:
        for check in CHECKS[use]:
            yield from check()
    if config is None:
        return
    try:
        from hgpo.config import load_config

        loaded = load_config(config)
        yield from data_of(loaded, config)
        yield from models_of(loaded, config)
    except ModuleNotFoundError as error:
        yield Finding("base", "configuration", f"cannot be looked at without the package {error.name}", INSTALL)


def plain(findings: list[Finding], uses: list[str]) -> str:
    """The findings as lines of text."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.use:<11} {finding.subject}: {finding.found}")
        lines += [f"{'':<11}   mend: {finding.mend}"] * bool(finding.mend)
    return "\n".join([*lines, *verdicts(findings, uses)])


def verdicts(findings: list[Finding], uses: list[str]) -> Iterator[str]:
    """For each use, how much is missing."""
    for use in uses:
        problems = sum(not finding.fine for finding in findings if finding.use == use)
        verdict = f"{problems} thing{'s' * (problems != 1)} missing" if problems else "ready"
        yield f"{use:<11} {verdict}: {USES[use]}"


def python() -> Iterator[Finding]:
    found = ".".join(str(part) for part in sys.version_info[:3])
    tried = sys.version_info[:2] in ((3, 11), (3, 12))
    yield Finding("base", "Python", found, "" if tried else "use Python 3.11 or 3.12")


def itself() -> Iterator[Finding]:
    try:
        yield Finding("base", "hgpo", version("hgpo"))
    except PackageNotFoundError:
        yield Finding("base", "hgpo", "runs from its folder, is not installed", INSTALL)


def wanted(extra: str | None) -> list[str]:
    """The requirements of the project itself (`extra` None) or of an extra, as `name>=version`.

    Of a project that is not installed, those that its pyproject.toml names; empty if that cannot be read.
    """
    try:
        found = []
        for line in requires("hgpo") or []:
            requirement, _, marker = line.partition(";")
            named = re.search(r"extra *== *[\"']([^\"']+)", marker)
            if (named[1] if named else None) == extra:
                found.append(requirement.strip())
        return found
    except PackageNotFoundError:
        try:
            import tomllib  # from Python 3.11 on

            project = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        except (ImportError, OSError):
            return []
        return project["optional-dependencies"][extra] if extra else project["dependencies"]


def packages_of(use: str, extra: str | None, how: str) -> Callable[[], Iterator[Finding]]:
    """A check that the packages of the project itself (`extra` None) or of an extra are there and fit."""

    def check() -> Iterator[Finding]:
        absent, wrong, requirements = [], [], wanted(extra)
        for line in requirements:
            name = re.match(r"[A-Za-z0-9._-]+", line)
            try:
                installed = version(name[0] if name else line)
            except PackageNotFoundError:
                absent.append(name[0] if name else line)
                continue
            if not _fits(line, installed):
                wrong.append(f"{name[0] if name else line} {installed} (wanted {line})")
        problems = [f"missing: {', '.join(absent)}"] * bool(absent) + [f"other: {', '.join(wrong)}"] * bool(wrong)
        problems += ["it is not known which are wanted"] * (not requirements)
        yield Finding(use, "packages", "; ".join(problems) or f"{len(requirements)} as wanted", how if problems else "")

    return check


def _fits(line: str, installed: str) -> bool:
    """Whether a version is one that a requirement allows; without `packaging`, itself wanted, that is not looked at."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        return True
    return Requirement(line).specifier.contains(installed, prereleases=True)


def torch_device() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch is linked with
        yield Finding("gpu", "GPUs", f"torch does not load: {error}", INSTALL)
        return
    driver = first_line("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
        yield Finding("gpu", "GPUs", f"{torch.cuda.device_count()} × {', '.join(sorted(names))}, driver {driver}")
    elif driver is None:
        yield Finding("gpu", "GPUs", "no NVIDIA driver", "run on a machine with GPUs, or train the embedded model")
    elif torch.version.cuda is None:
        yield Finding("gpu", "GPUs", f"driver {driver}, but torch is a CPU build", "install requirements/gpu.txt")
    else:
        mend = "update the driver, or install a torch for an older CUDA"
        yield Finding("gpu", "GPUs", f"driver {driver} does not work with CUDA {torch.version.cuda}", mend)


def visible_devices() -> Iterator[Finding]:
    yield Finding("gpu", "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "not set: every GPU is used"))


def shared_memory() -> Iterator[Finding]:
    path = Path("/dev/shm")
    size = shutil.disk_usage(path).total / 2**30 if path.is_dir() else 0
    mend = f"give the machine or container at least {SHARED_MEMORY_GB} GB of /dev/shm"
    yield Finding("gpu", "shared memory", f"{size:.1f} GB", "" if size >= SHARED_MEMORY_GB else mend)


def disk(use: str) -> Callable[[], Iterator[Finding]]:
    def check() -> Iterator[Finding]:
        for name in ("results", "data"):
            folder = Path(name).absolute()
            while not folder.exists():
                folder = folder.parent
            free, wish = shutil.disk_usage(folder).free / 1e9, FREE_DISK_GB[use]
            mend = f"free space below {folder}, or set `results` and `data.directory` to folders on a larger disk"
            found = f"{free:.0f} GB free; the use `{use}` wants {wish} GB"
            yield Finding(use, f"disk of {name}", found, "" if free >= wish else mend)
            if not os.access(folder, os.W_OK):
                yield Finding(use, f"folder of {name}", f"{folder} cannot be written", "work in a folder of your own")

    return check


def limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= OPEN_FILES
    yield Finding("base", "open files", f"{soft} (at most {hard})", "" if enough else f"ulimit -n {OPEN_FILES}")


def program(use: str, name: str, how: str, *arguments: str) -> Callable[[], Iterator[Finding]]:
    """A check that a program is on the PATH and answers."""

    def check() -> Iterator[Finding]:
        if shutil.which(name) is None:
            yield Finding(use, name, "not on the PATH", how)
        else:
            answer = first_line(name, *(arguments or ("--version",)))
            yield Finding(use, name, answer or "does not answer", "" if answer else how)

    return check


def slurm_cluster() -> Iterator[Finding]:
    if shutil.which("sinfo") is None:
        return
    partitions = sorted(set((output_of("sinfo", "-h", "-o", "%P") or "").split()))
    if not partitions:
        mend = "the controller does not answer: work on a login node, or ask your administrators"
        yield Finding("slurm", "partitions", "none", mend)
        return
    yield Finding("slurm", "partitions", ", ".join(partitions))
    if re.search(r"^AccountingStorageType *= *(accounting_storage/none|\(null\))$", settings_of_slurm(), flags=re.M):
        yield Finding("slurm", "accounting", "off: use `--profile slurm-nocct`")
        return
    accounts = output_of("sacctmgr", "-nP", "show", "assoc", f"user={user_name()}", "format=account")
    if accounts is None:
        yield Finding("slurm", "accounts", "sacctmgr does not answer", "ask your administrators")
        return
    names = sorted(set(accounts.split()))
    mend = f"ask your administrators for an account for the user {user_name()}"
    yield Finding("slurm", "accounts", ", ".join(names) or "none", "" if names else mend)


def settings_of_slurm() -> str:
    return output_of("scontrol", "show", "config") or ""


def user_name() -> str:
    """Who asks: not $USER, which a job or container may lack or inherit."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER") or str(os.getuid())


def slurm_profile() -> Iterator[Finding]:
    there = Path("slurm/config.yaml").is_file()
    mend = "run in the project's folder, or link its slurm folder to ~/.config/snakemake/slurm"
    yield Finding("slurm", "profile", "slurm/config.yaml" if there else "not here", "" if there else mend)


def dvc_remote() -> Iterator[Finding]:
    from hgpo.errors import HgpoError

    if not Path(".dvc").is_dir():
        yield Finding("pins", "DVC project", "not set up here", "hgpo pin init --remote FOLDER")
        return
    try:
        from hgpo.provenance.remote import check_remote, default_remote

        remote = default_remote()
    except (ModuleNotFoundError, HgpoError):
        return  # without DVC: the packages say so
    if remote is None:
        yield Finding("pins", "DVC remote", "none: pins are not pushed", "hgpo pin init --remote FOLDER")
        return
    try:
        check_remote(remote)
        yield Finding("pins", "DVC remote", remote)
    except HgpoError as error:
        yield Finding("pins", "DVC remote", error.message, error.hint or "")


def data_of(config: Config, file: str = "CONFIG") -> Iterator[Finding]:
    """Whether the data of the experiment are prepared, or can be. file: the configuration, as mends name it."""
    for name in config.matrix.environments:
        source = getattr(config.data, name)
        marker = config.data_folder(name) / "prepared.json"
        if marker.is_file():
            yield Finding("base", f"data of {name}", str(marker.parent))
        elif source.source == "mirror" and not Path(source.mirror or "").exists():
            mend = f"set data.{name}.mirror to a copy of the official data"
            yield Finding("base", f"data of {name}", f"no mirror at {source.mirror}", mend)
        else:
            mend, official = f"hgpo prepare-data --config {file} --environment {name}", source.source == "official"
            mend += ", where there is a network" if official else "; `snakemake` does it by itself"
            yield Finding("base", f"data of {name}", f"not yet prepared (source: {source.source})", mend, not official)


def models_of(config: Config, file: str = "CONFIG") -> Iterator[Finding]:
    """Whether the models of the experiment can be loaded without a network. file: as in `data_of`."""
    from huggingface_hub import try_to_load_from_cache

    from hgpo.provenance.models import is_hub_name

    for name in config.matrix.models:
        model = config.models[name]
        if model.source == "embedded":
            yield Finding("base", f"model {name}", "embedded: made here")
        elif model.endpoint is not None:
            yield Finding("base", f"model {name}", f"reached at {model.endpoint.url}")
        elif Path(model.source).is_dir():
            yield Finding("base", f"model {name}", model.source)
        elif not is_hub_name(model.source):
            mend = f"put a checkpoint there, or name another folder or a model of the hub in models.{name}.source"
            yield Finding("base", f"model {name}", f"there is no folder {model.source}", mend)
        elif isinstance(try_to_load_from_cache(model.source, "config.json", revision=model.revision), str):
            yield Finding("base", f"model {name}", f"{model.source} in the cache")
        else:
            record = f"{config.data.directory}/models/{name}.json"
            fetch = f"hgpo fetch-model --config {file} --model {name} --out {record}"
            mend = f"fetch it on a machine with network: {fetch} (HF_HOME names the cache)"
            yield Finding("base", f"model {name}", f"{model.source} is not in the cache", mend)


def output_of(*command: str) -> str | None:
    """What a command prints, or None if it is absent, fails or hangs."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def first_line(*command: str) -> str | None:
    text = output_of(*command)
    return re.sub(r"\s+", " ", text.strip().splitlines()[0]) if text and text.strip() else None


CHECKS: dict[str, list[Callable[[], Iterator[Finding]]]] = {
    "base": [
        python,
        itself,
        packages_of("base", None, INSTALL),
        program("base", "git", "install git: the commit of the code goes into every result"),
        disk("base"),
        limits,
    ],
    "gpu": [
        torch_device,
        visible_devices,
        packages_of("gpu", "gpu", "pip install --no-deps -r requirements/gpu.txt"),
        shared_memory,
        disk("gpu"),
    ],
    "slurm": [
        program("slurm", "sbatch", "work on a login node of the cluster (Debian: apt-get install slurm-client)"),
        slurm_cluster,
        slurm_profile,
    ],
    "containers": [
        program("containers", "apptainer", "install Apptainer 1.3 or newer: see docs/containers.md"),
    ],
    "pins": [
        packages_of("pins", "dvc", "pip install -e '.[dvc]'"),
        dvc_remote,
    ],
}
