"""The time of a start: to the first capacity, to the first token, and to the first whole answer.

`python -m benchmarks.start`: the built-in model, its cost curve and its bytecode known from a start before.
"""

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Report
from benchmarks.targets.card import COMMAND
from benchmarks.targets.process import START_S, running

TURNS = 11
CAPACITY = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity","params":{}}\n'
QUESTION = (
    b'{"jsonrpc":"2.0","id":1,"method":"infer_stream","params":'
    b'{"messages":[{"role":"user","content":"How do I see how busy the daemon is?"}],"temperature":0}}\n'
)


def main() -> None:
    """Measure and print."""
    report = Report("start")
    # An installed daemon has its bytecode; the first start writes that of a checkout.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _started(_first_line(QUESTION))  # reads the files, and measures the curve where it is not known
    for what, ask in (
        ("to the first capacity answer", _first_line(CAPACITY)),
        ("to the first token", _first_line(QUESTION)),
        ("to a whole first answer", _last_line(QUESTION)),
    ):
        taken = [_started(ask) for _ in range(TURNS)]
        report.say(f"from the start of the process {what}: p50 ms", statistics.median(taken), max(taken))
    report.close()


def _started(ask: Callable[[socket.socket], None]) -> float:
    """Return the milliseconds from the start of a daemon until it was asked and has answered."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        path = Path(folder) / "card.sock"
        began = time.perf_counter()
        with running([*COMMAND, "--socket", str(path), "--log-level", "error"]), socket.socket(socket.AF_UNIX) as peer:
            connect(peer, path)
            ask(peer)
            return (time.perf_counter() - began) * 1000


def connect(peer: socket.socket, path: Path) -> None:
    """Connect to a daemon as soon as it listens."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            peer.connect(str(path))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return


def _first_line(request: bytes) -> Callable[[socket.socket], None]:
    def ask(peer: socket.socket) -> None:
        peer.sendall(request)
        assert peer.makefile("rb").readline()

    return ask


def _last_line(request: bytes) -> Callable[[socket.socket], None]:
    def ask(peer: socket.socket) -> None:
        peer.sendall(request)
        assert any(b'"result"' in line for line in peer.makefile("rb"))

    return ask


if __name__ == "__main__":
    main()
