"""The viewer as a folder of files, and as a local server."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from hgpo.files import SUMS, atomic_folder, write_sums
from hgpo.reporting.viewer.data import ViewerData

ASSETS = {
    "index.html": "text/html",
    "viewer.css": "text/css",
    "viewer.js": "text/javascript",
    "vendor/preact.umd.js": "text/javascript",
    "vendor/preact-hooks.umd.js": "text/javascript",
    "vendor/htm.umd.js": "text/javascript",
    "vendor/LICENSES.txt": "text/plain",
}
HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Resource-Policy": "same-origin",  # other pages cannot take the data in as a script
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def write_site(data: ViewerData, folder: Path) -> Path:
    """Writes the page with all its data and their hashes into `folder`, replacing it as a whole: the page's path."""
    with atomic_folder(folder) as temporary:
        for name in ASSETS:
            target = temporary / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(_asset(name))
        (temporary / "data").mkdir()
        for name in data.names():
            (temporary / "data" / f"{name}.js").write_text(data.script(name), encoding="ascii")
        write_sums(temporary / SUMS, sorted(path for path in temporary.rglob("*") if path.is_file()))
    return folder / "index.html"


def make_server(data: ViewerData, port: int = 0) -> ThreadingHTTPServer:
    """A server on the local interface; port 0 takes any free one. Nothing but the page and its data is served."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, data))


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, data: ViewerData, *arguments: object) -> None:
        self.data = data
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = urlsplit(self.path).path.removeprefix("/") or "index.html"
        if name in ASSETS:
            return self._answer(_asset(name), ASSETS[name])
        try:
            if not (name.startswith("data/") and name.endswith(".js")):
                raise KeyError(name)
            script = self.data.script(name.removeprefix("data/").removesuffix(".js"))
        except KeyError:
            return self.send_error(HTTPStatus.NOT_FOUND)
        return self._answer(script.encode("ascii"), "text/javascript")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        for header, value in HEADERS.items():
            self.send_header(header, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged."""


def _asset(name: str) -> bytes:
    return files("hgpo.reporting.viewer").joinpath("assets", *name.split("/")).read_bytes()
