"""A stand-in for the Hugging Face hub on loopback: the few requests of a download, and the faults of a network."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple
from urllib.parse import unquote

from tests.client.carctl.bench.loopback import LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_STORED = "/stored/"
_LISTED = "/api/models/"


class Request(NamedTuple):
    """One request that came."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class _Server(LoopbackServer):
    hub: "FakeHub"


class FakeHub:
    """Serves `files`, by "owner/repo/path", in the revisions `main` and COMMIT."""

    def __init__(self) -> None:
        # The knobs: what there is; checksums that are not those of the content; by file, a status with the hub's
        # code for it; how many bytes the next downloads get before the connection ends, and after how many one falls
        # silent; whether downloads may begin in the middle, large files come from another host, and answers name a
        # commit.
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.cuts: list[int] = []
        self.silent_after: int | None = None
        self.ranges = True
        self.elsewhere = False
        self.names_commit = True
        # Mutable state: what was asked; set when a download fell silent, and when all have to end.
        self.requests: list[Request] = []
        self.silent = threading.Event()
        self._over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.port = int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The value for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def downloads(self) -> list[Request]:
        """The requests for content."""
        return [each for each in self.requests if each.method == "GET"]

    def etag(self, name: str) -> str:
        """Return the checksum that a file is said to have."""
        return self.etags.get(name, hashlib.sha256(self.files[name]).hexdigest())

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer for the length of a block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def fall_silent(self) -> None:
        """Send nothing until the end."""
        self.silent.set()
        self._over.wait()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(self.path)
        hub = self.server.hub
        hub.requests.append(Request(self.command, path, self.headers.get("Range"), self.headers.get("Authorization")))
        if path.startswith(_LISTED):
            self._list(path.removeprefix(_LISTED).partition("/tree/")[0])
            return
        repo, _, rest = path[1:].partition("/resolve/")
        revision, _, file = rest.partition("/")
        stored = path.startswith(_STORED)
        name = path.removeprefix(_STORED) if stored else f"{repo}/{file}"
        refusal = None if stored else self._refusal(name, revision)
        if refusal is not None:
            self._refuse(*refusal)
        elif hub.elsewhere and not stored:
            self._redirect(name)
        else:
            self._send(name)

    def _list(self, repo: str) -> None:
        names = [name.removeprefix(f"{repo}/") for name in self.server.hub.files if name.startswith(f"{repo}/")]
        if not names:
            self._refuse(404, "RepoNotFound")
            return
        listing = json.dumps([{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(listing)))
        self.end_headers()
        self.wfile.write(listing)

    def _refusal(self, name: str, revision: str) -> tuple[int, str] | None:
        if name in self.server.hub.refusals:
            return self.server.hub.refusals[name]
        if revision not in ("main", COMMIT):
            return 404, "RevisionNotFound"
        return None if name in self.server.hub.files else (404, "EntryNotFound")

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _facts(self, name: str) -> None:
        if self.server.hub.names_commit:
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{self.server.hub.etag(name)}"')
        self.send_header("X-Linked-Size", str(len(self.server.hub.files[name])))

    def _redirect(self, name: str) -> None:
        self.send_response(302)
        self._facts(name)
        self.send_header("Location", f"http://localhost:{self.server.hub.port}{_STORED}{name}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, name: str) -> None:
        content = self.server.hub.files[name]
        asked = self.headers.get("Range") if self.server.hub.ranges and self.command == "GET" else None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self._facts(name)
        self.send_header("ETag", f'"{self.server.hub.etag(name)}"')
        self.send_header("Content-Length", str(len(content) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self._send_content(content[start:])

    def _send_content(self, content: bytes) -> None:
        try:
            if self.server.hub.silent_after is not None:
                self.wfile.write(content[: self.server.hub.silent_after])
                self.server.hub.fall_silent()
            elif self.server.hub.cuts:
                self.wfile.write(content[: self.server.hub.cuts.pop(0)])
            else:
                self.wfile.write(content)
                return
        except OSError:
            pass  # who asked has seen enough
        self.close_connection = True
