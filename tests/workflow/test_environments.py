"""One source of versions: everything that names a version agrees with pyproject.toml and the lock."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load_tool():
    specification = importlib.util.spec_from_file_location("lock", ROOT / "tools/lock.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def pins(name: str) -> dict[str, str]:
    """The pins of a lock file that hold on Linux with Python 3.11 or 3.12."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements}


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("base", []), ("dev", ["dev", "docs", "dvc", "test"]), ("gpu", ["gpu"]), ("vllm-cpu", ["vllm-cpu", "test"])],
)
def test_every_lock_holds_what_the_project_asks_for(lock: str, extras: list[str]) -> None:
    held = pins(lock)
    asked = list(PROJECT["dependencies"])
    for extra in extras:
        asked += [line for line in PROJECT["optional-dependencies"][extra] if not line.startswith("hgpo[")]
    for line in asked:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        assert name in held, f"requirements/{lock}.txt lacks {name}: run `make lock`"
        if name == "numpy" or not requirement.specifier:
            continue
        assert requirement.specifier.contains(held[name]), (
            f"requirements/{lock}.txt has {name} {held[name]}, not {line}"
        )


def test_dev_has_the_versions_of_base() -> None:
    base, dev = pins("base"), pins("dev")
    assert {name: dev.get(name) for name in base} == base


def test_environment_yml_is_made_from_the_lock() -> None:
    text = (ROOT / "environment.yml").read_text()
    assert text == load_tool().environment_yml(), "run `python tools/lock.py --offline`"
    listed = next(entry["pip"] for entry in yaml.safe_load(text)["dependencies"] if isinstance(entry, dict))
    names = {canonicalize_name(Requirement(line).name) for line in listed if not line.startswith("-e")}
    assert names == set(pins("base"))


def test_images_install_the_locks() -> None:
    for name, lock in (("env", "base"), ("train", "gpu")):
        text = (ROOT / f"containers/{name}.def").read_text()
        assert f"tools/install.sh /opt/venv {lock}" in text
        assert not re.search(r"pip install(?! --)", text), "versions come from the lock only"


def test_images_have_what_a_reviewer_looks_for() -> None:
    for definition in sorted((ROOT / "containers").glob("*.def")):
        text = definition.read_text()
        sections = set(re.findall(r"^%(\w+)", text, flags=re.MULTILINE))
        assert {"labels", "post", "environment", "test", "runscript"} <= sections, definition
        assert "org.opencontainers.image.revision {{ commit }}" in text
        assert "hgpo.lock.sha256 {{ lock }}" in text
        assert "/opt/venv/bin:$PATH" in text, "python must be on the PATH"
        assert "check-environment" in text, "%test plays an episode"


@pytest.mark.parametrize(("name", "lock"), [("env", "base"), ("train", "gpu")])
def test_what_an_image_imports_is_in_its_lock(name: str, lock: str) -> None:
    text = (ROOT / f"containers/{name}.def").read_text()
    imported = re.search(r"python -c 'import ([\w, ]+)'", text)
    assert imported
    missing = {module for module in imported[1].split(", ") if canonicalize_name(module) not in pins(lock)}
    assert not missing, f"containers/{name}.def imports {missing}, requirements/{lock}.txt lacks them"


def test_the_training_image_has_the_cuda_of_its_lock() -> None:
    base = re.search(r"^From: nvidia/cuda:(\d+)\.", (ROOT / "containers/train.def").read_text(), flags=re.MULTILINE)
    assert base
    assert pins("gpu")["nvidia-cuda-runtime"].split(".")[0] == base[1]


def test_the_images_pythons_are_supported() -> None:
    env, train = ((ROOT / f"containers/{name}.def").read_text() for name in ("env", "train"))
    used = set(re.findall(r"From: python:(3\.\d+)", env)) | set(re.findall(r"python(3\.\d+)-venv", train))
    assert used == {"3.11", "3.12"}


def test_supported_pythons_are_named() -> None:
    named = {line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)}
    assert named == {"3.11", "3.12"}
