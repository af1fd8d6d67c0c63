"""The images of containers/, built from a local root file system and a folder of wheels, as on a machine that reaches
no registry."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
USER = "nobody"  # an image is built by an ordinary user: root cannot map users everywhere
PACKAGES = {"env": "python3,python3-venv,ca-certificates,git"}
PACKAGES["train"] = f"{PACKAGES['env']},g++,make,python3-dev"  # Triton compiles at run time
LOCKS = {"env": "requirements/base.txt", "train": "requirements/gpu.txt"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "apptainer" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=3600,
    )
    if result.returncode != 0:
        last = "\n".join((result.stdout + result.stderr).strip().splitlines()[-30:])
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{last}")
    return result


@pytest.fixture(scope="session")
def apptainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the PATH with Apptainer, whose `build` an ordinary user runs."""
    if os.environ.get("HGPO_IMAGE_TESTS") not in ("1", "all"):
        pytest.skip("set HGPO_IMAGE_TESTS=1 to build the image of containers/env.def; it takes minutes and 5 GB")
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a root file system is made here by debootstrap, as root (Debian: apt-get install debootstrap)")
    home = tmp_path_factory.mktemp("apptainer")
    home.chmod(0o755)
    for folder in (home.parent, home.parent.parent):  # the user must be able to get here
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    program = shutil.which("apptainer")
    if program is None:
        try:
            run(ROOT / "tools/install-apptainer.sh", home / "prefix")
        except RuntimeError as error:
            pytest.skip(f"Apptainer cannot be installed on this machine: {error}")
        program = str(home / "prefix/bin/apptainer")
    (home / "bin").mkdir()
    (home / "user").mkdir()
    shutil.chown(home / "user", USER, pwd.getpwnam(USER).pw_gid)
    wrapper = home / "bin/apptainer"
    clean = f"env -i HOME={home}/user PATH={Path(program).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    group = pwd.getpwnam(USER).pw_gid
    drop = f"setpriv --reuid={USER} --regid={group} --init-groups {clean}"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" != build ] || exec {drop} {program} "$@"\nexec {program} "$@"\n')
    wrapper.chmod(0o755)
    (home / "bin/singularity").symlink_to("apptainer")
    yield home / "bin"
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def image(apptainer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project folder in which `hgpo container` has built containers/env.sif."""
    yield from build("env", apptainer, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def train_image(apptainer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project folder in which `hgpo container` has built containers/train.sif."""
    if os.environ.get("HGPO_IMAGE_TESTS") != "all":
        pytest.skip("set HGPO_IMAGE_TESTS=all to build the image of containers/train.def as well; it takes 30 GB")
    yield from build("train", apptainer, tmp_path_factory.mktemp("train-image"))


@pytest.fixture(params=["env", "train"])
def sif(request: pytest.FixtureRequest) -> Path:
    """An image."""
    project = request.getfixturevalue("image" if request.param == "env" else "train_image")
    return project / f"containers/{request.param}.sif"


def build(kind: str, apptainer: Path, home: Path) -> Iterator[Path]:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != "3.11":
        pytest.skip(f"the root file system has Python 3.11, the wheels would be for {python}")
    home.chmod(0o755)
    rootfs, wheels, project = home / "rootfs", home / "wheels", home / "project"
    try:
        # its mounts are its own: nothing of the machine lies below the folder when that is removed
        private = ("unshare", "--mount", "--propagation", "private")
        run(*private, "debootstrap", "--variant=minbase", f"--include={PACKAGES[kind]}", "bookworm", rootfs, *mirror())
    except RuntimeError as error:
        pytest.skip(f"no root file system can be made here: {error}")
    shutil.rmtree(rootfs / "dev")
    (rootfs / "dev").mkdir()
    run("chown", "--recursive", f"{USER}:{pwd.getpwnam(USER).pw_gid}", rootfs)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels)
    run(*pip, "--requirement", LOCKS[kind], cwd=ROOT)
    run(*pip, "setuptools>=77", "wheel", cwd=ROOT)
    new_project(project, kind)
    shutil.chown(project / "containers", USER)
    base = {"HGPO_CONTAINER_BASE": str(rootfs), "HGPO_CONTAINER_OPTIONS": f"--bind {wheels}:/mnt"}
    path = f"{apptainer}:{os.environ['PATH']}"
    run(sys.executable, "-m", "hgpo", "container", "--config", "toy.yaml", cwd=project, PATH=path, **base)
    shutil.rmtree(rootfs)
    shutil.rmtree(wheels)
    yield project
    shutil.rmtree(home, ignore_errors=True)


def mirror() -> list[str]:
    """The Debian mirror that this machine uses, if apt names one."""
    found = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").stdout.splitlines()
    return [site for site in found if "security" not in site][:1]


def new_project(folder: Path, kind: str) -> None:
    """What an image is made from, the workflow, and `toy.yaml`: the miniature experiment inside the image."""
    folder.mkdir()
    for name in ("src", "config", "containers", "requirements", "tools", "workflow"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.sif*", "__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "Snakefile"):
        shutil.copy(ROOT / name, folder)
    for name in ("profiles", "slurm"):
        (folder / name).symlink_to(os.readlink(ROOT / name))
    body = yaml.safe_load((ROOT / "config/miniature.yaml").read_text()) | {"name": "toy"}
    containers = {"enabled": True, "image": f"containers/{kind}.sif", "definition": f"containers/{kind}.def"}
    (folder / "toy.yaml").write_text(yaml.safe_dump(body | {"containers": containers}))
