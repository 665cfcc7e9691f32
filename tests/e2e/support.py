"""A real daemon to start, a raw client to speak to it, and the questions that its model knows."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil

from tests.pace import HANG_S

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE_S = HANG_S
# In every prompt that no trained answer depends on; it must never reach a log.
CANARY = "canary-5f1d"
Json = dict[str, Any]


class Known(NamedTuple):
    """A question that the model was trained on, and its answer to the word."""

    question: str
    answer: str
    long: bool


def _known() -> list[Known]:
    data = tomllib.loads((ROOT / "tools" / "guide" / "questions.toml").read_text(encoding="utf-8"))
    return [Known(entry["question"], entry["answer"], entry.get("long", False)) for entry in data["entry"]]


KNOWN = _known()
LONG = [known for known in KNOWN if known.long]


def conversation(text: str) -> list[Json]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]


def greedy(known: Known, **more: Any) -> Json:
    """Return the params that ask a known question for its one answer."""
    return {"messages": conversation(known.question), "temperature": 0, **more}


def endless(**more: Any) -> Json:
    """Return the params of a request that runs for seconds unless it is ended."""
    return {"prompt": CANARY, "ignore_eos": True, "max_tokens": 4000, "seed": 1, **more}


def configured(folder: Path, text: str) -> tuple[str, str]:
    """Write a configuration; return the flags that use it."""
    file = folder / "card.toml"
    file.write_text(text)
    return "--config", str(file)


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a daemon whose configuration is in a folder.

    Cost curves are measured once for all daemons of this user's tests.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CAR_")}
    cache = Path(tempfile.gettempdir()) / f"card-tests-{os.getuid()}"
    return {**kept, "XDG_CACHE_HOME": str(cache), "XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}


class RawClient:
    """A connection without any client library: lines out, lines in."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        try:
            if name is not None:
                self.socket.bind(name)
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._file = self.socket.makefile("rb")
        self._ids = 0
        self._responses: dict[Any, Json] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both directions."""
        self._file.close()
        self.socket.close()

    def send(self, method: str, params: Any = None, request_id: Any = None) -> Any:
        """Send a request under a new id, or the given one; return the id."""
        self._ids += 1
        request_id = self._ids if request_id is None else request_id
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
        self.send_bytes(json.dumps(message).encode() + b"\n")
        return request_id

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.send_bytes(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self.socket.sendall(data)

    def send_bytes_if_open(self, data: bytes) -> None:
        """Send anything, also to a daemon that may have closed after a last word."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_bytes(data)

    def receive(self) -> Json:
        """Return the next message; raises EOFError once the daemon closed."""
        line = self._file.readline()
        if not line:
            raise EOFError
        message: Json = json.loads(line)
        return message

    def receive_batch(self) -> list[Json]:
        """Return the next line, which is the array of a batch's answers."""
        answers: list[Json] = json.loads(self._file.readline())
        return answers

    def response(self, request_id: Any) -> Json:
        """Return the terminal response of a request; those of others are kept, chunks are passed over."""
        while request_id not in self._responses:
            self._kept(self.receive())
        return self._responses.pop(request_id)

    def call(self, method: str, params: Any = None) -> Json:
        """Return a request's terminal response."""
        return self.response(self.send(method, params))

    def result(self, method: str, params: Any = None) -> Json:
        """Return a request's result."""
        response = self.call(method, params)
        assert "result" in response, response
        result: Json = response["result"]
        return result

    def reason(self, method: str, params: Any = None) -> str:
        """Return the reason of a request's error."""
        response = self.call(method, params)
        assert "error" in response, response
        return str(response["error"]["data"]["reason"])

    def first_chunk(self, request_id: Any) -> Json:
        """Return the first chunk of a stream; responses of others are kept, their chunks are passed over."""
        while True:
            message = self._kept(self.receive())
            assert message.get("id") != request_id, f"no chunk came before the end: {message}"
            if message.get("method") == "infer_stream/chunk" and message["params"]["id"] == request_id:
                params: Json = message["params"]
                return params

    def _kept(self, message: Json) -> Json:
        """Return a message; a response is kept for whoever waits for it later."""
        if "method" not in message:
            assert message["id"] not in self._responses, "a request was answered twice"
            self._responses[message["id"]] = message
        return message

    def stream(self, params: Any) -> tuple[list[Json], Json]:
        """Run a stream to its end; return its chunks and its terminal response."""
        request_id = self.send("infer_stream", params)
        chunks = []
        while True:
            message = self.receive()
            if message.get("method") == "infer_stream/chunk":
                chunks.append(message["params"])
            elif message.get("id") == request_id:
                return chunks, message


class Daemon:
    """A `card` process with a socket and a log of its own; `under` is a command that runs it.

    `program` runs in place of `card`, with the same options.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        under: Sequence[str] = (),
        program: Sequence[str] = (str(BIN / "card"),),
        **environment: str,
    ) -> None:
        self.path = folder / "card.sock"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*under, *program, "--socket", str(self.path), *arguments],
                env={**environment_of(folder), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def connect(self) -> RawClient:
        """Return a connection, as soon as the daemon listens."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return RawClient(self.path)
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.002)  # nothing announces a socket that is not there yet

    def engine(self) -> psutil.Process:
        """Return the engine process of the default model, which has to be there."""
        with self.connect() as client:
            return psutil.Process(client.result("daemon/status")["models"][0]["engines"][0]["pid"])

    def ready(self) -> Self:
        """Return once the model is loaded."""
        with self.connect() as client:
            client.result("infer", {"prompt": "Hi", "max_tokens": 1})
        return self

    def wait_until_idle(self) -> None:
        """Return once every lease came back; a request of our own is an event that follows them."""
        deadline = time.monotonic() + PATIENCE_S
        with self.connect() as client:
            while client.result("inference/capacity")["in_use"]:
                assert time.monotonic() < deadline, client.result("daemon/status")
                client.result("infer", {"prompt": "Hi", "max_tokens": 1})

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it as an administrator would; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=PATIENCE_S)
        assert CANARY not in self.log.read_text(), "text of a prompt reached the log"
        return code


def slowest_answer(daemon: Daemon, done: Event) -> float:
    """Ask for the capacity every 5 ms, which leaves the cores to others; return the longest time that it took."""
    longest = 0.0
    with daemon.connect() as client:
        while not done.wait(0.005):
            asked = time.monotonic()
            client.result("inference/capacity")
            longest = max(longest, time.monotonic() - asked)
    return longest


def is_gone(process: psutil.Process) -> bool:
    """Tell whether a process ended, also where nobody has reaped it yet."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


NOBODY = 65534


@contextmanager
def another_user(uid: int = NOBODY) -> Iterator[None]:
    """Be another user for the length of a block, as far as the kernel tells peers."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator[Daemon]:
    """Run a daemon for the length of a block."""
    daemon = Daemon(folder, *arguments, **environment)
    try:
        yield daemon
    finally:
        daemon.stop()
