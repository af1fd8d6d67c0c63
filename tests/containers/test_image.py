"""The images of containers/: built, labelled, tested; that of env.def used by rules, here and through Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.conftest import cluster  # noqa: F401  a fixture

from hgpo.files import sha256_file

from .conftest import LOCKS, ROOT, run

SLURM = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10", "--slurm-keep-successful-logs"]


def in_image(
    project: Path, apptainer: Path, *arguments: str, target: str = "check_environment"
) -> subprocess.CompletedProcess[str]:
    """Snakemake with rules inside the image; the checks of the environment only."""
    command = [sys.executable, "-m", "snakemake", "--configfile", "toy.yaml", "--sdm", "apptainer", *arguments]
    environment = os.environ | {"PATH": f"{apptainer}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--until", target], cwd=project, env=environment, capture_output=True, text=True, timeout=1800
    )


@pytest.fixture
def project(image: Path, tmp_path: Path) -> Path:
    """A copy of the project, its image linked to the one that was built."""
    folder = tmp_path / "project"
    shutil.copytree(image, folder, symlinks=True, ignore=shutil.ignore_patterns("*.sif", ".snakemake"))
    os.link(image / "containers/env.sif", folder / "containers/env.sif")
    return folder


def test_the_labels_name_commit_and_lock(sif: Path, apptainer: Path) -> None:
    shown = run(apptainer / "apptainer", "inspect", "--json", sif).stdout
    labels = json.loads(shown)["data"]["attributes"]["labels"]
    assert labels["hgpo.lock.sha256"] == sha256_file(ROOT / LOCKS[sif.stem])
    assert labels["org.opencontainers.image.revision"] not in ("", "unknown")


def test_the_image_passes_its_own_test(sif: Path, apptainer: Path) -> None:
    run(apptainer / "apptainer", "test", sif)


def test_a_rule_runs_in_the_image(project: Path, apptainer: Path) -> None:
    result = in_image(project, apptainer, "--cores", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Activating singularity image" in result.stdout + result.stderr
    assert (project / "results/toy/checks/alfworld.json").exists()


def test_another_image_than_its_digest_names_stops_before_any_job(project: Path, apptainer: Path) -> None:
    image = project / "containers/env.sif"
    image.unlink()
    image.write_bytes(b"something else")
    result = in_image(project, apptainer, "--cores", "1")
    text = result.stdout + result.stderr
    assert result.returncode != 0
    assert "is not the image that containers/env.sif.sha256 names" in text
    assert not (project / "data").exists()


@pytest.mark.usefixtures("cluster")
def test_a_rule_runs_in_the_image_through_slurm(project: Path, apptainer: Path) -> None:
    resources = ["--set-resources", "check_environment:mem_mb=900"]
    result = in_image(project, apptainer, "--profile", "slurm", *SLURM, *resources)
    text = result.stdout + result.stderr
    assert result.returncode == 0, text
    assert "has been submitted with SLURM jobid" in text
    logs = [path.read_text() for path in (project / ".snakemake/slurm_logs").rglob("*.log")]
    assert any("Activating singularity image" in log for log in logs)
    assert (project / "results/toy/checks/alfworld.json").exists()
