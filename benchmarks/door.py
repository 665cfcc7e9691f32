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
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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


def cpu_per_token(process: psutil.Process, door: Path, streams: int) -> tuple[float, float]:
    """Return the microseconds of CPU of the door a token, over streams at once, and the tokens a second."""
    counts: list[int] = []

    def run() -> None:
        counts.append(ByDoor(door).stream(max_tokens=2000, ignore_eos=True, seed=1)[1])

    before, begun = cpu_s(process), time.perf_counter()
    threads = [threading.Thread(target=run) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - begun
    return (cpu_s(process) - before) * 1e6 / sum(counts), sum(counts) / took_s


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
_CHAT = json.dumps({"model": "paced", "messages": _MESSAGES, "stream": True}).encode()
_BY_DOOR = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_BY_DOOR += b"Content-Length: %d\r\n\r\n%b" % (len(_CHAT), _CHAT)
_BY_SOCKET = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "infer_stream", "params": {"prompt": "x"}}).encode()
_PACED = (sys.executable, "-m", "benchmarks.paced")


def paced(options: argparse.Namespace) -> None:
    """Print the CPU a chunk of the door, of a program that only forwards bytes, and of the door of another checkout."""
    chunks = round(options.rate * options.seconds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="card-")))
        daemon, figures = folder / "card.sock", (str(chunks), str(options.rate))
        stack.enter_context(program(daemon, *_PACED, "daemon", str(daemon), *figures))
        ways: dict[str, tuple[psutil.Process, Path, bytes, bytes]] = {}
        for name, (process, path) in stack.enter_context(doors(folder, daemon, options.against)).items():
            ways[name] = process, path, _BY_DOOR, b"0\r\n\r\n"
        path = folder / "forward.sock"
        forwarding = program(path, *_PACED, "forward", str(path), str(daemon))
        ways["forward"] = (stack.enter_context(forwarding), path, _BY_SOCKET + b"\n", b'"result"')
        took: dict[str, list[float]] = {name: [] for name in ways}
        woken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.turns):
            for name, (process, path, request, end) in ways.items():
                before, switches = cpu_s(process), process.num_ctx_switches().voluntary
                read_all(path, request, end, options.streams)
                took[name].append((cpu_s(process) - before) * 1e6 / (chunks * options.streams))
                switches = process.num_ctx_switches().voluntary - switches
                woken[name].append(switches / (chunks * options.streams))
        for name, micros in took.items():
            each = ", ".join(f"{figure:.1f}" for figure in micros)
            wakes = statistics.median(woken[name])
            print(f"{name}: {statistics.median(micros):.1f} us of CPU and {wakes:.2f} wake-ups a chunk ({each})")


def guide(options: argparse.Namespace) -> None:
    """Print the first token's milliseconds, and the CPU a token of the doors in front of the real daemon."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="card-")))
        daemon = folder / "card.sock"
        stack.enter_context(program(daemon, str(BIN / "card"), "--socket", str(daemon), "--capacity", "16"))
        ways = stack.enter_context(doors(folder, daemon, options.against))
        process, door = ways["door"]
        first_tokens(daemon, door, 10)  # the model is loaded and the caches are warm
        if options.requests:
            by_socket, by_door = first_tokens(daemon, door, options.requests)
            print(f"first token, median of {options.requests}: socket {by_socket:.2f} ms, door {by_door:.2f} ms")
        for streams in (1, 4, 8, 16):
            took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(options.turns):
                for name, way in ways.items():
                    took[name].append(cpu_per_token(*way, streams))
            for name, figures in took.items():
                each = ", ".join(f"{micros:.1f}" for micros, _ in figures)
                micros, speed = (statistics.median(column) for column in zip(*figures, strict=True))
                print(f"{name}: {streams} streams: {micros:.1f} us of CPU a token at {speed:.0f} tokens/s ({each})")
        print(f"resident memory of the door: {process.memory_info().rss / 2**20:.0f} MiB")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200, help="requests by each way (default: 200)")
    parser.add_argument("--paced", action="store_true", help="streams of a daemon that only keeps a pace")
    parser.add_argument("--streams", type=int, default=16, help="of --paced (default: 16)")
    parser.add_argument("--rate", type=float, default=250, help="chunks a second of each (default: 250)")
    parser.add_argument("--seconds", type=float, default=5, help="of a turn (default: 5)")
    parser.add_argument("--turns", type=int, default=5, help="of each way (default: 5)")
    parser.add_argument("--against", type=Path, help="a checkout whose door takes turns with this one's")
    options = parser.parse_args()
    (paced if options.paced else guide)(options)


if __name__ == "__main__":
    main()
