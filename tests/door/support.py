"""A door to start in front of a daemon, and one without a server to send requests to."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

from car_client.carctl.adopt.candidates import Candidate
from car_client.carctl.hub.remote import Hub
from car_client.client import Client
from car_client.door.keys import KeyRing, add_key, remove_key
from car_client.door.settings import EFFORTS
from car_http.answering import Pace
from car_http.app import Door
from car_http.catalogue import Catalogue, DaemonHealth
from car_http.crowds import BodyMemory, DaemonCalls
from car_http.daemon.pool import DaemonPool
from car_http.endpoints.context import DoorContext
from car_http.feeds import Feeds
from car_http.guard import Rules
from car_http.metrics import DoorMetrics
from car_http.page_view import PageViews
from car_http.shelf import Shelf
from car_protocol.hub import models_folder
from tests.pace import HANG_S
from tests.ports import free_port

BIN = Path(sys.executable).parent
PATIENCE_S = HANG_S
Json = dict[str, Any]


class DoorProcess:
    """A `card-http` process on a Unix socket and a loopback port, in front of the daemon at `daemon`.

    `under` is a command that runs it.
    """

    def __init__(self, folder: Path, daemon: Path, *flags: str, under: Sequence[str] = ()) -> None:
        self.socket = folder / "http.sock"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._keys = folder / "config" / "car" / "http-keys"
        listen = ["--listen", f"unix:{self.socket}", "--listen", f"127.0.0.1:{self.port}"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("CAR_")}
        self.process = subprocess.Popen(
            [*under, str(BIN / "card-http"), *listen, "--socket", str(daemon), *flags],
            env={**env, "XDG_CONFIG_HOME": str(folder / "config")},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline().decode()
        assert "listening on" in self.first_line, self.first_line

    @property
    def key(self) -> str:
        """The key that the first start made."""
        return self._keys.read_text().split()[-1]

    def add_key(self, name: str) -> str:
        """Return a further key."""
        return add_key(self._keys, name).secret

    def remove_key(self, name: str) -> None:
        """Remove a key."""
        assert remove_key(self._keys, name)

    def stop(self) -> str:
        """End it as an administrator would; return its log."""
        self.process.terminate()
        assert self.process.stderr is not None
        with self.process.stderr as log:
            text = self.first_line + log.read().decode()
        assert self.process.wait(PATIENCE_S) == 0, text
        return text

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def door_before(folder: Path, daemon: Path, *flags: str, under: Sequence[str] = ()) -> Iterator[DoorProcess]:
    """Run a door for the length of a block."""
    door = DoorProcess(folder, daemon, *flags, under=under)
    try:
        yield door
    finally:
        if door.process.returncode is None:
            door.stop()


class Answer:
    """An answer as the application sent it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.began = asyncio.Event()  # a piece of the body came
        self.left = asyncio.Event()  # the client is gone
        self.ended = False
        self.reads = asyncio.Event()  # the client reads
        self.reads.set()

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        """The body as data."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events, without the mark of the end."""
        lines = self.body.decode().splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(text) for text in data if text != "[DONE]"]

    @property
    def lines(self) -> list[Any]:
        """The lines of an NDJSON body."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def comments(self) -> list[str]:
        """The comments among server-sent events."""
        return [line.removeprefix(": ") for line in self.body.decode().splitlines() if line.startswith(": ")]


class OfflineDoor:
    """The application without a server, in front of a fake daemon."""

    def __init__(
        self,
        daemon: Path,
        keys: Path,
        rules: Rules | None = None,
        pace: Pace | None = None,
        bodies: BodyMemory | None = None,
        *,
        calls: DaemonCalls | None = None,
        any_model: bool | None = None,
        stored: Sequence[Candidate] = (),
        hub: Hub | None = None,
        models: Path | None = None,
    ) -> None:
        self.pool = DaemonPool([daemon], calls)
        self.metrics = DoorMetrics()
        self.now = 0.0  # seconds, of the clock of its health
        self.feeds = Feeds(self.pool)
        health = DaemonHealth(self.pool, lambda: self.now)
        shelf = Shelf(
            keys.with_name("card.toml"),
            lambda: Client(str(daemon), max_retries=0),
            hub=lambda: hub or Hub(),
            folder=lambda: models or models_folder(),
            stored=lambda: stored,
        )
        context = DoorContext(
            self.pool,
            Catalogue(self.pool),
            self.metrics,
            health,
            self.feeds,
            PageViews(),
            shelf,
            pace or Pace(),
            EFFORTS,
            any_model=any_model,
        )
        self._door = Door(context, rules or Rules(), KeyRing(keys, keys.with_name("card.toml")), bodies)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *ignored: object) -> None:
        self.pool.close()

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Return the answer to a JSON body, or to bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", "content-length": str(len(data))} | _dashed(headers)
        return await self.request("POST", path, data, given)

    @asynccontextmanager
    async def posting(self, path: str, body: Any) -> AsyncIterator[Answer]:
        """Post a JSON body; in the block its answer has begun, after it the answer is whole."""
        answer, data = Answer(), json.dumps(body).encode()
        task = asyncio.create_task(self.into(answer, "POST", path, data, {"content-type": "application/json"}))
        await answer.began.wait()
        yield answer
        await task

    async def get(self, path: str, **headers: str) -> Answer:
        """Return the answer to a request without a body."""
        return await self.request("GET", path, b"", _dashed(headers))

    async def request(
        self, method: str, path: str, body: bytes, headers: dict[str, str], *, unix: bool = True
    ) -> Answer:
        """Return the answer to any request; the client stays until it has it."""
        answer = Answer()
        await self.into(answer, method, path, body, headers, unix=unix)
        return answer

    async def into(
        self,
        answer: Answer,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
        *,
        unix: bool = True,
    ) -> None:
        """Fill an answer, which can be read meanwhile; setting its `left` has the client leave."""
        bodies = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Json:
            if bodies:
                return bodies.pop()
            await answer.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                await answer.reads.wait()
                answer.pieces.append(message["body"])
                answer.ended = not message.get("more_body", False)
                answer.began.set()

        scope = _scope(method, path, headers)
        scope["state"] = {"unix": unix}
        await self._door(scope, receive, send)


def _scope(method: str, path: str, headers: dict[str, str]) -> Json:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
