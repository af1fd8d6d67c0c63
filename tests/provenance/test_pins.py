"""Pins: what is fetched is what was pinned, in a fresh clone, with a remote that is there or not."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner
from fake_results import make_config, make_evaluation, make_training

from hgpo.cli import cli
from hgpo.config import Config, load_config, plan_runs
from hgpo.config.experiment import Dvc
from hgpo.envs.preparation import prepare
from hgpo.errors import DataError
from hgpo.files import write_sums
from hgpo.provenance import pins
from hgpo.provenance.manifest import write_manifest
from hgpo.provenance.remote import default_remote
from hgpo.provenance.verify import verify
from hgpo.reporting.build import write_tables
from hgpo.reporting.collect import warm_start_runs
from hgpo.rollout.policy import policy_hash

pytest.importorskip("dvc", reason="DVC is not installed: pip install -e '.[dvc]'")


LARGE = 5 << 20  # bytes of a model: more than are copied when a file is pinned


def git(*arguments: str) -> None:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def finished_experiment(home: Path, remote: Path | None) -> Config:
    """A finished experiment in a git repository whose results folder git ignores; the current folder is its home."""
    home.mkdir()
    os.chdir(home)
    git("init", "-q")
    Path(".gitignore").write_text("/results/\n/data/\n.dvc-hgpo.lock\n")
    games = {"train": 6, "valid_seen": 2, "valid_unseen": 2}
    config = load_config(
        make_config(
            Path("results/toy"),
            name="toy",
            results="results",
            data={"directory": "data/toy", "alfworld": {"games": games}},
            matrix={"models": ["tiny"], "environments": ["alfworld"], "methods": ["hgpo"], "history": [1]},
            evaluation={"seeds": [1]},
            training={"iterations": 2},
            dvc={"enabled": True, "remote": str(remote) if remote else None},
        )
    )
    prepare(config, "alfworld")
    (run,) = plan_runs(config)
    (start,) = warm_start_runs(config)
    for each, folder in ((run, run.folder(config) / "final"), (start, run.start_folder(config))):
        make_training(config, each)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(each.method[:1].encode() * LARGE)
        record = folder / "checkpoint.json" if each is start else run.folder(config) / "finished.json"
        key, digest = "hash" if each is start else "checkpoint_hash", policy_hash(folder)
        record.write_text(json.dumps(json.loads(record.read_text()) | {key: digest}))
        for split in config.environment("alfworld").evaluation_splits:
            make_evaluation(config, each, split, 1, checkpoint=digest)
    write_tables(config)
    (config.folder / "analysis").mkdir()
    (config.folder / "analysis/bias.csv").write_text("a,b")
    (config.folder / "report.html").write_text("<html>")
    write_sums(config.folder / "report.html.sha256", [config.folder / "report.html"])
    write_manifest(config)
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished experiment that is not pinned, made once."""
    home, before = tmp_path_factory.mktemp("finished"), Path.cwd()
    try:
        finished_experiment(home / "project", None)
    finally:
        os.chdir(before)
    return home


@pytest.fixture
def project(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Its configuration with the remote `remote` beside the project; the project is the current folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "project")
    return with_remote(load_config("results/toy/config.yaml"), tmp_path / "remote")


def with_remote(config: Config, remote: Path | str | None) -> Config:
    return config.model_copy(update={"dvc": Dvc(enabled=True, remote=str(remote) if remote else None)})


@pytest.fixture(scope="module")
def pinned(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pinned project and its remote, made once."""
    home, before = tmp_path_factory.mktemp("pinned"), Path.cwd()
    shutil.copytree(finished, home, dirs_exist_ok=True)
    try:
        os.chdir(home / "project")
        pins.add(with_remote(load_config("results/toy/config.yaml"), home / "remote"))
        git("add", "-A")
        git("commit", "-qm", "pins")
    finally:
        os.chdir(before)
    return home


@pytest.fixture
def clone(pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone of the pinned project with a remote of its own; the current folder. Beside it the project."""
    shutil.copytree(pinned, tmp_path, dirs_exist_ok=True)
    git("clone", "-q", str(tmp_path / "project"), str(tmp_path / "clone"))
    for folder in ("project", "clone"):
        settings = tmp_path / folder / ".dvc/config"
        settings.write_text(settings.read_text().replace(str(pinned), str(tmp_path)))
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def model_objects(remote: Path) -> list[Path]:
    """The objects of the two models in the remote."""
    return [path for path in remote.rglob("*") if path.is_file() and path.stat().st_size == LARGE]


def list_of_checkpoints(remote: Path) -> Path:
    """The object of the remote that lists the files of the pinned checkpoints."""
    return next(path for path in remote.rglob("*.dir") if b"final/model.safetensors" in path.read_bytes())


def follow(mend: str) -> None:
    """Does what a mend says: runs its commands."""
    for line in mend.splitlines()[1:]:
        command, *arguments = shlex.split(line, comments=True)
        dvc = [sys.executable, "-m", "dvc"]
        subprocess.run([*(dvc if command == "dvc" else [command]), *arguments], check=True, capture_output=True)


def test_a_fresh_clone_gets_everything_back(clone: Path, tmp_path: Path) -> None:
    assert not Path("results").exists()
    config = pins.pull("toy")
    run = plan_runs(config)[0]
    for part in ("data/toy/alfworld/prepared.json", f"{run.folder(config)}/final/model.safetensors"):
        assert Path(part).read_bytes() == (tmp_path / "project" / part).read_bytes()
    for name in ("tables/results.csv", "report.html", "analysis/bias.csv"):
        assert (config.folder / name).read_bytes() == (tmp_path / "project" / config.folder / name).read_bytes()
    found = verify(config)
    assert found.differences == [] and found.checked["checkpoints"] == 2
    assert [line for line in found.absent if line != "viewer"] == []


def test_fetched_markers_are_older_than_the_episodes(clone: Path) -> None:
    config = pins.pull("toy")
    run = plan_runs(config)[0]
    order = [config.data_folder("alfworld") / "prepared.json", run.start_folder(config) / "checkpoint.json"]
    order += [run.folder(config) / "finished.json", run.episodes(config, "in_domain", 1)]
    dates = [path.stat().st_mtime for path in order]
    assert dates == sorted(dates) and len(set(dates)) == len(dates)


def test_a_remote_that_is_away_is_named_with_the_mend(clone: Path, tmp_path: Path) -> None:
    shutil.move(tmp_path / "remote", tmp_path / "away")
    with pytest.raises(DataError) as raised:
        pins.pull("toy")
    assert f"{tmp_path / 'remote'} is not there: no such folder" in raised.value.message
    CliRunner().invoke(cli, ["pin", "init", "--remote", str(tmp_path / "away")], catch_exceptions=False)
    assert "hgpo pin init --remote" in (raised.value.hint or "") and pins.pull("toy").name == "toy"


def test_nothing_is_pushed_to_a_remote_that_is_away(project: Config, tmp_path: Path) -> None:
    pins.add(project)
    shutil.move(tmp_path / "remote", tmp_path / "away")
    with pytest.raises(DataError) as raised:
        pins.add(project)
    assert f"not pushed to {tmp_path / 'remote'}" in raised.value.message
    assert "no such folder" in raised.value.message and not (tmp_path / "remote").exists()


@pytest.mark.parametrize("fault", ["wrong", "missing", "wrong list", "damaged list", "missing list"])
def test_an_object_is_named_with_its_file_and_pin_and_the_mend_works(clone: Path, tmp_path: Path, fault: str) -> None:
    remote = tmp_path / "remote"
    named = list_of_checkpoints(remote) if "list" in fault else model_objects(remote)[0]
    os.chmod(named, 0o644)
    if fault == "wrong":
        named.write_bytes(b"x" * LARGE)
    elif fault == "wrong list":
        named.write_text("[]")
    elif fault == "damaged list":
        named.write_text('[{"md5')
    else:
        named.unlink()
    with pytest.raises(DataError) as raised:
        pins.pull("toy")
    message, mend = raised.value.message, raised.value.hint or ""
    assert str(named) in message and "pinned by pins/toy/checkpoints.dvc" in message
    assert ("is missing" if "missing" in fault else "has another content") in message
    assert "list" in fault or "model.safetensors" in message
    assert not Path("results").exists()
    os.chdir(tmp_path / "project")
    follow(mend)
    os.chdir(clone)
    assert verify(pins.pull("toy")).differences == []


def test_an_object_of_a_remote_that_is_no_folder_is_named(clone: Path, tmp_path: Path) -> None:
    handler = partial(QuietHandler, directory=str(tmp_path / "remote"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        settings = Path(".dvc/config")
        settings.write_text(settings.read_text().replace(str(tmp_path / "remote"), url))
        model = model_objects(tmp_path / "remote")[0]
        os.chmod(model, 0o644)
        model.write_bytes(b"x" * LARGE)
        with pytest.raises(DataError) as raised:
            pins.pull("toy")
        server.shutdown()
    assert f"{url}/{model.relative_to(tmp_path / 'remote')} was not fetched" in raised.value.message
    assert "model.safetensors" in raised.value.message and "dvc push pins/toy/checkpoints.dvc" in str(raised.value.hint)
    shutil.rmtree(".dvc/cache")
    with pytest.raises(DataError) as raised:  # the server is gone: no object is to blame
        pins.pull("toy")
    assert f"nothing comes from the DVC remote {url}" in raised.value.message
    assert "delete" not in str(raised.value.hint)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def test_without_the_dvc_project_git_has_it(clone: Path) -> None:
    shutil.rmtree(".dvc")
    with pytest.raises(DataError) as raised:
        pins.pull("toy")
    assert ".dvc/config is missing" in raised.value.message
    assert (raised.value.hint or "").startswith("git checkout HEAD -- .dvc .dvcignore")
    git("checkout", "HEAD", "--", ".dvc", ".dvcignore")
    assert Path(".dvc/config").exists()


def test_without_a_remote_the_message_says_so(clone: Path) -> None:
    Path(".dvc/config").write_text("")
    with pytest.raises(DataError) as raised:
        pins.pull("toy")
    assert "no DVC remote" in raised.value.message and "hgpo pin init --remote" in (raised.value.hint or "")


def changed_weights(config: Config) -> Path:
    return plan_runs(config)[0].folder(config) / "final/model.safetensors"


def changed_start(config: Config) -> Path:
    return plan_runs(config)[0].start_folder(config) / "model.safetensors"


def changed_data(config: Config) -> Path:
    return next(config.data_folder("alfworld").rglob("*.tw-pddl"))


def changed_episodes(config: Config) -> Path:
    return plan_runs(config)[0].episodes(config, "in_domain", 1)


@pytest.mark.parametrize("changed", [changed_weights, changed_start, changed_data, changed_episodes])
def test_what_is_not_as_recorded_is_not_pinned(project: Config, changed: Callable[[Config], Path]) -> None:
    path = changed(project)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError) as raised:
        pins.add(project)
    assert "is not pinned" in raised.value.message
    assert any(
        str(part) in raised.value.message
        for part in (
            path,
            path.parent,
            path.relative_to(project.folder) if path.is_relative_to(project.folder) else path,
        )
    )
    assert not Path("pins").exists() and not Path(".dvc").exists()


def test_a_checkpoint_or_data_without_their_record_are_not_pinned(project: Config) -> None:
    for path in (
        plan_runs(project)[0].folder(project) / "final/config.json",
        project.data_folder("alfworld") / "prepared.json",
    ):
        path.rename(path.with_suffix(".away"))
        with pytest.raises(DataError, match=f"{path.parent} is not whole"):
            pins.add(project)
        path.with_suffix(".away").rename(path)


def test_another_remote_is_refused_and_the_first_stays(project: Config, tmp_path: Path) -> None:
    pins.add(project)
    pins.add(with_remote(project, f"{tmp_path / 'remote'}/"))  # the same in other words
    with pytest.raises(DataError) as raised:
        pins.add(with_remote(project, tmp_path / "second"))
    assert str(tmp_path / "remote") in raised.value.message and str(tmp_path / "second") in raised.value.message
    assert default_remote() == str(tmp_path / "remote")
    said = CliRunner().invoke(cli, ["pin", "init", "--remote", str(tmp_path / "second")], catch_exceptions=False)
    assert f"the remote was {tmp_path / 'remote'}" in said.output
    pins.add(with_remote(project, tmp_path / "second"))
    assert default_remote() == str(tmp_path / "second") and len(model_objects(tmp_path / "second")) == 2


def test_a_push_that_fails_leaves_no_remote(project: Config, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    for url in ("nowhere://bucket/path", str(tmp_path / "a file")):
        with pytest.raises(DataError) as raised:
            pins.add(with_remote(project, url))
        assert url in raised.value.message
        assert default_remote() is None
    pins.add(project)
    assert default_remote() == str(tmp_path / "remote")


def test_whether_anything_was_pushed_is_said(project: Config, tmp_path: Path) -> None:
    settings = Path("results/toy/config.yaml")
    said = CliRunner().invoke(cli, ["pin", "add", "--config", str(settings)], catch_exceptions=False)
    assert "nothing was pushed" in said.output and "hgpo pin init --remote" in said.output
    CliRunner().invoke(cli, ["pin", "init", "--remote", str(tmp_path / "remote")], catch_exceptions=False)
    said = CliRunner().invoke(cli, ["pin", "add", "--config", str(settings)], catch_exceptions=False)
    assert f"pushed to {tmp_path / 'remote'}" in said.output and len(model_objects(tmp_path / "remote")) == 2


def test_an_object_that_the_remote_lost_is_pushed_again(project: Config, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    pins.add(with_remote(project, remote))
    lost = model_objects(remote)[0]
    lost.unlink()
    pins.add(with_remote(project, remote))
    assert lost.is_file(), "DVC itself takes a folder whose list is in the remote for pushed"


def test_a_folder_that_is_a_link_is_pinned_with_its_files(project: Config, tmp_path: Path) -> None:
    games = project.data_folder("alfworld") / "games"
    shutil.move(games, tmp_path / "games")
    games.symlink_to(tmp_path / "games")
    pins.add(project)
    assert len(list(Path("pins/toy/data/alfworld/games").rglob("*.tw-pddl"))) == 10


def test_a_name_that_dvc_does_not_take_is_named(project: Config) -> None:
    odd = project.data_folder("alfworld") / os.fsdecode(b"odd \xe9")
    odd.write_text("x")
    with pytest.raises(DataError, match=r"odd \\xe9'.* UTF-8"):
        pins.add(project)


def test_a_file_with_another_content_is_kept_and_named(clone: Path) -> None:
    config = pins.pull("toy")
    table = config.folder / "tables/results.csv"
    table.write_text("mine")
    with pytest.raises(DataError, match="results.csv"):
        pins.pull("toy")
    assert table.read_text() == "mine"


def test_an_unfinished_experiment_is_not_pinned(project: Config) -> None:
    missing = plan_runs(project)[0].folder(project) / "finished.json"
    missing.unlink()
    with pytest.raises(DataError, match="finished.json"):
        pins.add(project)


def test_an_experiment_without_all_evaluations_is_not_pinned(project: Config) -> None:
    missing = plan_runs(project)[0].episodes(project, "out_of_domain", 1)
    missing.unlink()
    with pytest.raises(DataError, match="out_of_domain"):
        pins.add(project)


def test_pinning_again_after_a_change_pins_the_change(project: Config) -> None:
    pins.add(project)
    before = Path("pins/toy/record.dvc").read_text()
    (project.folder / "analysis/bias.csv").write_text("b,a")
    write_manifest(project)
    pins.add(project)
    assert Path("pins/toy/record.dvc").read_text() != before


def test_an_unknown_pin_names_the_known_ones(clone: Path) -> None:
    with pytest.raises(DataError) as raised:
        pins.pull("other")
    assert "toy" in (raised.value.hint or "")
