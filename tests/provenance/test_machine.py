"""hgpo doctor, and images without Apptainer."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hgpo.cli import cli
from hgpo.config.experiment import Containers
from hgpo.errors import DataError, HgpoError
from hgpo.provenance import containers, machine

SOURCE = Path(__file__).parents[2] / "src"


def test_what_is_missing_comes_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    findings = list(machine.examine(["slurm", "containers"]))
    missing = {finding.subject: finding.mend for finding in findings if not finding.fine}
    assert {"sbatch", "apptainer"} <= set(missing)
    assert all(missing.values())


def test_the_exit_code_is_about_the_uses_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = CliRunner().invoke(cli, ["doctor", "--use", "containers"])
    assert result.exit_code == 1
    assert "apptainer" in result.output


def test_a_mirror_that_is_not_there_is_found(tmp_path: Path) -> None:
    from hgpo.config.experiment import parse_config

    source = {"source": "mirror", "mirror": str(tmp_path / "absent")}
    body = {"name": "toy", "data": {"directory": str(tmp_path), "alfworld": source}, "models": {"tiny": {}}}
    config = parse_config(body | {"matrix": {"models": ["tiny"], "environments": ["alfworld"]}})
    found = [finding for finding in machine.data_of(config) if not finding.fine]
    assert [finding.subject for finding in found] == ["data of alfworld"]
    assert "data.alfworld.mirror" in found[0].mend


def test_containers_that_are_off_are_recorded_as_off() -> None:
    assert containers.ensure_images(Containers()) == {"enabled": False}


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands in for apptainer: the image it builds is its arguments and the definition."""
    program = tmp_path / "bin/apptainer"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nfor last; do :; done\neval image=\\${$(($# - 1))}\n{ echo "$@"; cat "$last"; } > "$image"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path("requirements").mkdir()
    Path("requirements/base.txt").write_text("a==1\n")
    Path("env.def").write_text("Bootstrap: docker\nFrom: python:3.11\n%files\n    requirements/base.txt\n")
    return tmp_path


def test_an_image_is_built_once_and_then_verified(apptainer: Path) -> None:
    settings = Containers(enabled=True, image="env.sif", definition="env.def")
    first = containers.ensure_images(settings)["images"][0]
    second = containers.ensure_images(settings)["images"][0]
    assert (first["built"], second["built"]) == ("built now", "verified")
    assert first["sha256"] == second["sha256"]
    assert "lock=" in Path("env.sif").read_text()


def test_a_local_root_file_system_replaces_the_registry(apptainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGPO_CONTAINER_BASE", "/somewhere/rootfs")
    containers.ensure_image(Path("env.sif"), Path("env.def"))
    text = Path("env.sif").read_text()
    assert "Bootstrap: localimage" in text and "From: /somewhere/rootfs" in text and "docker" not in text


def test_another_image_than_its_digest_names_is_refused(apptainer: Path) -> None:
    containers.ensure_image(Path("env.sif"), Path("env.def"))
    Path("env.sif").write_text("something else")
    with pytest.raises(DataError, match="env.sif.sha256"):
        containers.ensure_image(Path("env.sif"), Path("env.def"))


def test_without_apptainer_the_message_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HgpoError, match="no apptainer"):
        containers.ensure_image(tmp_path / "env.sif", tmp_path / "env.def")


def configuration(tmp_path: Path, source: dict[str, str]) -> Path:
    body = {"name": "toy", "data": {"directory": str(tmp_path / "data"), "alfworld": source}, "models": {"tiny": {}}}
    body["matrix"] = {"models": ["tiny"], "environments": ["alfworld"]}
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.mark.parametrize(("source", "missing"), [("generated", False), ("official", True)])
def test_data_that_are_not_prepared_come_with_the_command(tmp_path: Path, source: str, missing: bool) -> None:
    path = configuration(tmp_path, {"source": source})
    (found,) = [f for f in machine.examine([], str(path)) if f.subject == "data of alfworld"]
    assert f"hgpo prepare-data --config {path} --environment alfworld" in found.mend
    assert found.fine is not missing  # what needs no network is made by the workflow


def test_the_command_that_a_mend_names_prepares_the_data(tmp_path: Path) -> None:
    path = configuration(tmp_path, {"source": "generated"})
    body = yaml.safe_load(path.read_text())
    body["data"]["alfworld"]["games"] = {"train": 6, "valid_seen": 2, "valid_unseen": 2}
    path.write_text(yaml.safe_dump(body))
    (found,) = [f for f in machine.examine([], str(path)) if f.subject == "data of alfworld"]
    program, *arguments = shlex.split(found.mend.partition(";")[0])
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert program == "hgpo" and done.exit_code == 0
    (found,) = [f for f in machine.examine([], str(path)) if f.subject == "data of alfworld"]
    assert found.fine and not found.mend


def test_too_small_a_disk_is_compared_with_what_the_use_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 54 * 10**9))
    found = {use: f for use in ("base", "gpu") for f in machine.disk(use)() if f.subject == "disk of results"}
    assert found["base"].fine and not found["gpu"].fine
    for use, finding in found.items():
        assert f"54 GB free; the use `{use}` wants {machine.FREE_DISK_GB[use]} GB" in finding.found


def run_python(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)


def test_a_python_without_any_package_says_what_to_install() -> None:
    said = run_python("-S", "-m", "hgpo", "doctor", path=str(SOURCE))
    assert said.returncode == 1 and said.stderr == ""
    assert "missing: alfworld, click" in said.stdout and "pydantic" in said.stdout and "make install" in said.stdout
    said = run_python("-S", "-m", "hgpo", "tables", path=str(SOURCE))
    assert said.returncode == 1 and "Traceback" not in said.stderr
    assert "click is not installed" in said.stderr and "make install" in said.stderr


@pytest.mark.parametrize("absent", ["pydantic", "rich", "yaml", "packaging", "numpy"])
def test_a_missing_package_is_named(tmp_path: Path, absent: str) -> None:
    (tmp_path / f"{absent}.py").write_text(f"raise ModuleNotFoundError('none', name={absent!r})")
    path = f"{tmp_path}{os.pathsep}{SOURCE}"
    config = configuration(tmp_path, {"source": "generated"})
    said = run_python("-m", "hgpo", "doctor", "--use", "base", "--config", str(config), path=path)
    assert "Traceback" not in said.stderr and "Python" in said.stdout and "base  " in said.stdout
    if absent in ("pydantic", "yaml", "numpy"):
        assert f"without the package {absent}" in said.stdout and said.returncode == 1
        said = run_python("-m", "hgpo", "tables", "--config", str(config), path=path)
        assert said.returncode == 1 and "Traceback" not in said.stderr
        assert f"the package {absent} is not installed" in said.stderr and "hgpo doctor" in said.stderr


def test_a_remote_that_is_away_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dvc", reason="DVC is not installed: pip install -e '.[dvc]'")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    (tmp_path / "remote").mkdir()
    CliRunner().invoke(cli, ["pin", "init", "--remote", str(tmp_path / "remote")], catch_exceptions=False)
    assert [f.fine for f in machine.dvc_remote()] == [True]
    (tmp_path / "remote").rmdir()
    (found,) = machine.dvc_remote()
    assert str(tmp_path / "remote") in found.found and "hgpo pin init" in found.mend
