"""The cost of the HTTP door: CPU of its process a token, and how much later the first token comes than by the socket.

Both ways take turns in one run, and the figures are medians. Run: python -m benchmarks.door
"""

import argparse
import asyncio
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import uvloop

from car_protocol.envelope import Notification, Result, decode_frame, encode_message
from car_protocol.framing import LineFramer
from car_protocol.methods import CHUNK

BIN = Path(sys.executable).parent
PROMPT = "What is capacity?"
Messages = list[dict[str, str]]
_MESSAGES: Messages = [{"role": "user", "content": PROMPT}]
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_DEEP = {"max_tokens": 2000, "ignore_eos": True, "seed": 1}
_PACED = (sys.executable, "-c", "import sys; from benchmarks.door import serve_paced; serve_paced(*sys.argv[1:])")
_ANSWER = {
    "finish_reason": "stop",
    "model": "paced",
    "seed": 1,
    "usage": {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1},
    "timings": {"queue_ms": 0.0, "prefill_ms": 1.0, "ttft_ms": 2.0, "decode_ms": 3.0, "total_ms": 5.0},
}


class ByDoor:
    """A connection to a door that is kept."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def stream(self, **more: Any) -> tuple[float, int]:
        """Return the seconds to the first token of a chat, and the number of its tokens."""
        body = json.dumps({"model": "guide", "messages": _MESSAGES, **_STREAMED, **more}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: %d\r\n\r\n" % len(body)
        begun = time.perf_counter()
        self._socket.sendall(head + body)
        first, tokens = 0.0, 0
        for line in self._file:
            if b'"delta":{"content":' in line and b'"role"' not in line:
                first = first or time.perf_counter() - begun
            elif found := _TOKENS.search(line):
                tokens = int(found[1])
            elif line == b"0\r\n":
                self._file.readline()
                break
        return first, tokens


class BySocket:
    """A connection to the daemon that is kept."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def stream(self, **more: Any) -> tuple[float, int]:
        """Return the seconds to the first token of a chat, and the number of its tokens."""
        params = {"messages": _MESSAGES, **more}
        begun = time.perf_counter()
        request = {"jsonrpc": "2.0", "id": 1, "method": "infer_stream", "params": params}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        first = 0.0
        for line in self._file:
            if b'"infer_stream/chunk"' in line:
                first = first or time.perf_counter() - begun
            elif found := _TOKENS.search(line):
                return first, int(found[1])
        raise EOFError("the daemon ended the connection before the result")


def first_tokens(daemon: Path, door: Path, count: int) -> tuple[float, float]:
    """Return the median milliseconds to the first token by the socket and by the door, in turns."""
    ways: tuple[BySocket | ByDoor, ...] = (BySocket(daemon), ByDoor(door))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for way, seconds in zip(ways, times, strict=True):
            seconds.append(way.stream(max_tokens=2, temperature=0)[0])
    by_socket, by_door = (statistics.median(seconds) * 1000 for seconds in times)
    return by_socket, by_door


@contextmanager
def program(socket_path: Path, *command: str, env: dict[str, str] | None = None) -> Iterator[psutil.Process]:
    """Run a program until its socket is there."""
    process = subprocess.Popen(command, env={**os.environ, **(env or {})})
    try:
        while not socket_path.exists():
            assert process.poll() is None, command
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def read_all(path: Path, request: bytes, streams: int) -> None:
    """Send a request on each of several connections, and read until each answer has its end."""
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ, connection)
        while selector.get_map():
            for key, _ in selector.select():
                data = key.data.recv(65_536)
                if not data or b"0\r\n\r\n" in data:
                    selector.unregister(key.data)
                    key.data.close()


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU that a process used, in seconds, by its clock on Linux: other figures come in steps of 10 ms."""
    return time.clock_gettime(~process.pid << 3 | 2)


class Door(NamedTuple):
    """A door that runs: its process, its socket and a request for a stream."""

    process: psutil.Process
    path: Path
    request: bytes


@contextmanager
def doors(folder: Path, daemon: Path, against: Path | None, params: dict[str, Any]) -> Iterator[dict[str, Door]]:
    """Run this checkout's door in front of a daemon, and the door of another checkout."""
    chat = json.dumps({"model": "guide", "messages": _MESSAGES, **_STREAMED, **params}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request += b"Content-Length: %d\r\n\r\n%b" % (len(chat), chat)
    with ExitStack() as stack:
        running = {}
        trees = {"door": None} | ({"old": against} if against else {})
        for name, tree in trees.items():
            path = folder / f"{name}.sock"
            env = {"XDG_CONFIG_HOME": str(folder)}
            if tree is not None:
                env["PYTHONPATH"] = f"{tree}/client:{tree}/protocol"
            command = (str(BIN / "card-http"), "--listen", f"unix:{path}", "--socket", str(daemon))
            running[name] = Door(stack.enter_context(program(path, *command, env=env)), path, request)
        yield running


def compare(running: dict[str, Door], streams: int, chunks: int, turns: int) -> None:
    """Print the CPU and the wake-ups a chunk of each door, which take turns; a stream has `chunks` of them."""
    took: dict[str, list[float]] = {name: [] for name in running}
    woken: dict[str, list[float]] = {name: [] for name in running}
    speeds = []
    for _ in range(turns):
        for name, door in running.items():
            before, switches = cpu_s(door.process), door.process.num_ctx_switches().voluntary
            begun = time.perf_counter()
            read_all(door.path, door.request, streams)
            speeds.append(chunks * streams / (time.perf_counter() - begun))
            took[name].append((cpu_s(door.process) - before) * 1e6 / (chunks * streams))
            switches = door.process.num_ctx_switches().voluntary - switches
            woken[name].append(switches / (chunks * streams))
    print(f"{streams} streams, together {statistics.median(speeds):.0f} chunks/s:")
    for name, micros in took.items():
        each = ", ".join(f"{figure:.1f}" for figure in micros)
        wakes = statistics.median(woken[name])
        print(f"  {name}: {statistics.median(micros):.1f} us of CPU and {wakes:.2f} wake-ups a chunk ({each})")


class PacedDaemon:
    """Streams of `chunks` chunks, `rate` a second each; as an engine's step does, each tick serves every stream."""

    def __init__(self, chunks: int, rate: float) -> None:
        self._chunks = chunks
        self._pause_s = 1 / rate
        self._sent: dict[tuple[asyncio.Transport, Any], int] = {}  # by connection and id of the call

    def begin(self, transport: asyncio.Transport, call_id: Any) -> None:
        """Begin a stream."""
        self._sent[transport, call_id] = 0

    async def run(self) -> None:
        """Serve every stream at its pace; a thread sleeps, because the loop's own timers have whole milliseconds."""
        due = time.monotonic()
        while True:
            due += self._pause_s
            await asyncio.to_thread(time.sleep, max(0.0, due - time.monotonic()))
            for (transport, call_id), sent in list(self._sent.items()):
                self._serve(transport, call_id, sent)

    def _serve(self, transport: asyncio.Transport, call_id: Any, sent: int) -> None:
        if sent < self._chunks and not transport.is_closing():
            transport.write(encode_message(Notification(CHUNK, {"id": call_id, "seq": sent, "text": " token"})))
            self._sent[transport, call_id] = sent + 1
            return
        del self._sent[transport, call_id]
        transport.write(encode_message(Result(call_id, _ANSWER | {"chunks": sent})))


class DaemonProtocol(asyncio.Protocol):
    """One connection to the paced daemon."""

    def __init__(self, daemon: PacedDaemon) -> None:
        self._daemon = daemon
        self._framer = LineFramer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Begin a stream for each call, whatever its method."""
        for frame in self._framer.feed(data):
            self._daemon.begin(self._transport, cast(Any, decode_frame(frame)).id)


def serve_paced(path: str, chunks: str, rate: str) -> None:
    """Serve paced streams until the process ends."""

    async def serve() -> None:
        daemon = PacedDaemon(int(chunks), float(rate))
        await asyncio.get_running_loop().create_unix_server(lambda: DaemonProtocol(daemon), path)
        await daemon.run()

    uvloop.run(serve())


def paced(options: argparse.Namespace) -> None:
    """Print the CPU a chunk in front of a daemon that only keeps a pace."""
    chunks = round(options.rate * options.seconds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="card-")))
        daemon = folder / "card.sock"
        stack.enter_context(program(daemon, *_PACED, str(daemon), str(chunks), str(options.rate)))
        found = stack.enter_context(doors(folder, daemon, options.against, {}))
        compare(found, options.streams or 16, chunks, options.turns)


def guide(options: argparse.Namespace) -> None:
    """Print the first token's milliseconds, and the CPU a token in front of the real daemon."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="card-")))
        daemon = folder / "card.sock"
        stack.enter_context(program(daemon, str(BIN / "card"), "--socket", str(daemon), "--capacity", "16"))
        found = stack.enter_context(doors(folder, daemon, options.against, _DEEP))
        process, door, _ = found["door"]
        first_tokens(daemon, door, 10)  # the model is loaded and the caches are warm
        if options.requests:
            by_socket, by_door = first_tokens(daemon, door, options.requests)
            print(f"first token, median of {options.requests}: socket {by_socket:.2f} ms, door {by_door:.2f} ms")
        for streams in (options.streams,) if options.streams else (1, 4, 8, 16):
            compare(found, streams, _DEEP["max_tokens"], options.turns)
        print(f"resident memory of the door: {process.memory_info().rss / 2**20:.0f} MiB")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200, help="requests by each way (default: 200)")
    parser.add_argument("--paced", action="store_true", help="streams of a daemon that only keeps a pace")
    parser.add_argument("--streams", type=int, help="at once (default: 16 paced; 1, 4, 8, 16 of the model)")
    parser.add_argument("--rate", type=float, default=250, help="chunks a second of each paced one (default: 250)")
    parser.add_argument("--seconds", type=float, default=5, help="of a turn of paced ones (default: 5)")
    parser.add_argument("--turns", type=int, default=5, help="of each way (default: 5)")
    parser.add_argument("--against", type=Path, help="a checkout whose door takes turns with this one's")
    options = parser.parse_args()
    (paced if options.paced else guide)(options)


if __name__ == "__main__":
    main()
