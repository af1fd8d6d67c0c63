"""Models of the hub: fetched from a local stand-in, checked by hash, and loaded by jobs that have no network."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from hgpo.provenance import machine

REPOSITORY, COMMIT = "someone/tiny", "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one repository at one commit; `files` are its files, weights are large files."""

    files: dict[str, bytes] = {}

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        name = path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
        if path.startswith(f"/api/models/{REPOSITORY}/tree/{COMMIT}"):
            tree = [{"type": "file", "path": one["rfilename"], "oid": one["blobId"]} | one for one in self.siblings()]
            self.send(json.dumps(tree).encode(), {}, with_body)
        elif path == f"/api/models/{REPOSITORY}/revision/{COMMIT}":
            body = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": self.siblings()}
            self.send(json.dumps(body | {"private": False, "tags": [], "downloads": 0}).encode(), {}, with_body)
        elif name in self.files:
            self.send(self.files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{sha(self.files[name])}"'}, with_body)
        else:
            self.send_error(404)

    def siblings(self) -> list[dict[str, object]]:
        listed = []
        for name, content in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git(content)}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"sha256": sha(content), "oid": sha(content), "size": len(content), "pointerSize": 134}
            listed.append(entry)
        return listed

    def send(self, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def weights_of(model) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub(policy, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    from hgpo.rollout.policy import save_policy

    save_policy(*policy, tmp_path / "upload")
    Hub.files = {path.name: path.read_bytes() for path in (tmp_path / "upload").iterdir()}
    Hub.files["README.md"] = b"not wanted"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetch(hub: ThreadingHTTPServer, tmp_path: Path):
    """Calls `hgpo fetch-model` with the stand-in as hub and a cache of its own."""
    body = {"name": "toy", "models": {"tiny": {"source": REPOSITORY, "revision": COMMIT}}}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(body | {"matrix": {"models": ["tiny"]}}))
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",  # as in jobs: the command itself is what may ask the hub
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)]),
    }

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        command = command or ("-m", "hgpo", "fetch-model", "--config", "toy.yaml", "--model", "tiny", "--out", "m.json")
        arguments = [sys.executable, *command]
        return subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return call


def test_a_model_is_fetched_checked_and_loaded_without_the_hub(fetch, hub, policy, tmp_path: Path) -> None:
    done = fetch()
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "m.json").read_text())
    assert record["revision"] == COMMIT
    assert record["files"] == {name: sha(content) for name, content in Hub.files.items() if name != "README.md"}

    hub.shutdown()
    hub.server_close()
    load = "import sys; from hgpo.rollout.policy import checkpoint_of, load_policy; from test_models import weights_of;"
    load += "print(weights_of(load_policy(checkpoint_of('tiny', sys.argv[1], sys.argv[2]))[0]))"
    loaded = fetch("-c", load, REPOSITORY, COMMIT)
    assert loaded.stdout.strip() == weights_of(policy[0]), loaded.stderr
    elsewhere = fetch("-c", load, REPOSITORY, "1" * 40)
    assert "hgpo fetch-model --model tiny" in elsewhere.stderr
    again = fetch()
    assert again.returncode != 0 and "run it where there is a network" in again.stderr


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_file_is_named_and_the_mend_mends(fetch, tmp_path: Path, name: str) -> None:
    assert fetch().returncode == 0
    cached = next((tmp_path / "home").rglob(name)).resolve()
    cached.write_bytes(cached.read_bytes()[:-1] + b"!")
    wrong = fetch()
    assert wrong.returncode != 0
    assert name in wrong.stderr and f"remove {cached} and fetch again" in " ".join(wrong.stderr.split())
    cached.unlink()
    assert fetch().returncode == 0


def test_a_folder_that_is_not_there_is_no_hub_model_without_commit(fetch, tmp_path: Path) -> None:
    file = tmp_path / "toy.yaml"
    body = yaml.safe_load(file.read_text())
    body["models"]["tiny"] = {"source": "data/models/tiny"}
    file.write_text(yaml.safe_dump(body))
    missing = fetch()
    assert missing.returncode != 0 and "there is no folder data/models/tiny" in missing.stderr
    (found,) = [f for f in machine.examine([], str(file)) if f.subject == "model tiny"]
    assert found.found == "there is no folder data/models/tiny" and "models.tiny.source" in found.mend


def test_a_hub_model_needs_its_commit(fetch, tmp_path: Path) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(file.read_text().replace(COMMIT, "null").replace("'null'", "null"))
    missing = fetch()
    assert missing.returncode != 0 and "models.tiny.revision" in missing.stderr
