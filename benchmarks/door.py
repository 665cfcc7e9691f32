"""The cost of the HTTP door: CPU of its process a token, and how much later the first token comes than by the socket.

Both ways take turns in one run, and the figures are medians. Run: python -m benchmarks.door
"""

import argparse
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
from typing import Any, NamedTuple

import psutil

BIN = Path(sys.executable).parent
PROMPT = "What is capacity?"
Messages = list[dict[str, str]]
_MESSAGES: Messages = [{"role": "user", "content": PROMPT}]


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


def read_all(path: Path, request: bytes, end: bytes, streams: int) -> None:
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
                if not data or end in data:
                    selector.unregister(key.data)
                    key.data.close()


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU that a process used, in seconds, by its clock on Linux: other figures come in steps of 10 ms."""
    return time.clock_gettime(~process.pid << 3 | 2)


@contextmanager
def doors(folder: Path, daemon: Path, against: Path | None) -> Iterator[dict[str, tuple[psutil.Process, Path]]]:
    """Run this checkout's door in front of a daemon, and the door of another checkout."""
    with ExitStack() as stack:
        running = {}
        trees = {"door": None} | ({"old": against} if against else {})
        for name, tree in trees.items():
            path = folder / f"{name}.sock"
            env = {"XDG_CONFIG_HOME": str(folder)}
            if tree is not None:
                env["PYTHONPATH"] = f"{tree}/client:{tree}/protocol"
            command = (str(BIN / "card-http"), "--listen", f"unix:{path}", "--socket", str(daemon))
            running[name] = stack.enter_context(program(path, *command, env=env)), path
        yield running


_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_PACED = (sys.executable, "-m", "benchmarks.paced")
_DEEP = {"max_tokens": 2000, "ignore_eos": True, "seed": 1}


class Way(NamedTuple):
    """A program before the daemon: its process, its socket, a request and the end of its answer."""

    process: psutil.Process
    path: Path
    request: bytes
    end: bytes


@contextmanager
def ways(folder: Path, daemon: Path, against: Path | None, params: dict[str, Any]) -> Iterator[dict[str, Way]]:
    """Run the doors, and a program that only forwards bytes."""
    chat = json.dumps({"model": "guide", "messages": _MESSAGES, **_STREAMED, **params}).encode()
    by_door = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    by_door += b"Content-Length: %d\r\n\r\n%b" % (len(chat), chat)
    call = {"jsonrpc": "2.0", "id": 1, "method": "infer_stream", "params": {"messages": _MESSAGES, **params}}
    path = folder / "forward.sock"
    forwarding = program(path, *_PACED, "forward", str(path), str(daemon))
    with doors(folder, daemon, against) as running, forwarding as forward:
        found = {name: Way(*door, by_door, b"0\r\n\r\n") for name, door in running.items()}
        yield found | {"forward": Way(forward, path, json.dumps(call).encode() + b"\n", b'"result"')}


def compare(running: dict[str, Way], streams: int, chunks: int, turns: int) -> None:
    """Print the CPU and the wake-ups a chunk of each way, which take turns; a stream has `chunks` of them."""
    took: dict[str, list[float]] = {name: [] for name in running}
    woken: dict[str, list[float]] = {name: [] for name in running}
    speeds = []
    for _ in range(turns):
        for name, way in running.items():
            before, switches = cpu_s(way.process), way.process.num_ctx_switches().voluntary
            begun = time.perf_counter()
            read_all(way.path, way.request, way.end, streams)
            speeds.append(chunks * streams / (time.perf_counter() - begun))
            took[name].append((cpu_s(way.process) - before) * 1e6 / (chunks * streams))
            switches = way.process.num_ctx_switches().voluntary - switches
            woken[name].append(switches / (chunks * streams))
    print(f"{streams} streams, together {statistics.median(speeds):.0f} chunks/s:")
    for name, micros in took.items():
        each = ", ".join(f"{figure:.1f}" for figure in micros)
        wakes = statistics.median(woken[name])
        print(f"  {name}: {statistics.median(micros):.1f} us of CPU and {wakes:.2f} wake-ups a chunk ({each})")


def paced(options: argparse.Namespace) -> None:
    """Print the CPU a chunk in front of a daemon that only keeps a pace."""
    chunks = round(options.rate * options.seconds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="card-")))
        daemon = folder / "card.sock"
        stack.enter_context(program(daemon, *_PACED, "daemon", str(daemon), str(chunks), str(options.rate)))
        found = stack.enter_context(ways(folder, daemon, options.against, {}))
        compare(found, options.streams or 16, chunks, options.turns)


def guide(options: argparse.Namespace) -> None:
    """Print the first token's milliseconds, and the CPU a token in front of the real daemon."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="card-")))
        daemon = folder / "card.sock"
        stack.enter_context(program(daemon, str(BIN / "card"), "--socket", str(daemon), "--capacity", "16"))
        found = stack.enter_context(ways(folder, daemon, options.against, _DEEP))
        process, door, *_ = found["door"]
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
