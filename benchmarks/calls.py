"""The cost of a small call: `inference/capacity` one after the other and pipelined, beside a bare echo in turn.

`python -m benchmarks.calls` prints one line a figure. The caller is a blocking socket in one thread.
"""

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.generator import generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.streams import GREEDY
from benchmarks.targets.card import serving
from benchmarks.targets.process import running
from car_client.carctl.load.figures import Spread, spread
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.workload import Workload

CALL = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity","params":{}}\n'
CALLS, WARM_UP = 5000, 500
PIPELINED, IN_FLIGHT = 40_000, 32
TURNS = 3
STREAMS = Workload(clients=8, requests=32, answers=Lengths(64, 64), options=GREEDY)


class Caller:
    """A connection that calls and waits."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))

    def one_by_one(self, calls: int) -> Spread:
        """Return the spread of round trips."""
        taken = []
        for _ in range(calls):
            sent = time.perf_counter()
            self._socket.sendall(CALL)
            self._answers(1)
            taken.append((time.perf_counter() - sent) * 1000)
        return spread(taken)

    def until(self, over: Callable[[], bool]) -> Spread:
        """Return the spread of round trips while something lasts, a hundred a second."""
        taken = []
        while not over():
            taken.append(self.one_by_one(1).max)
            time.sleep(0.01)
        return spread(taken)

    def pipelined(self, calls: int, in_flight: int) -> float:
        """Return calls a second, with so many on their way at any time."""
        started = time.perf_counter()
        self._socket.sendall(CALL * in_flight)
        done = 0
        while done < calls:
            answered = self._answers(1)
            done += answered
            self._socket.sendall(CALL * answered)
        seconds = time.perf_counter() - started
        self._answers(in_flight)
        return done / seconds

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _answers(self, least: int) -> int:
        lines = 0
        while lines < least:
            lines += self._socket.recv(1 << 20).count(b"\n")
        return lines


def main() -> None:
    """Measure in turn and print."""
    report = Report("calls")
    trips, rates = measured(TURNS)
    for name in trips:
        p50 = statistics.median(trip.p50 for trip in trips[name]) * 1000
        p99 = statistics.median(trip.p99 for trip in trips[name]) * 1000
        report.say(f"{name}: round trip, idle: p50 us (p99)", p50, p99)
        report.say(f"{name}: pipelined, {IN_FLIGHT} in flight: calls/s", statistics.median(rates[name]), *rates[name])
    with serving(model_file("q8_0"), "--capacity", "8", "--context-tokens", "1024") as card:
        loaded = _under_load(card)
    report.say("card: round trip while 8 streams decode: p50 us (p99, most)", *(1000 * value for value in _row(loaded)))
    report.close()


def measured(turns: int) -> tuple[dict[str, list[Spread]], dict[str, list[float]]]:
    """Return the round trips in ms and the calls a second of card and of the echo, in turn."""
    trips: dict[str, list[Spread]] = {"card": [], "echo": []}
    rates: dict[str, list[float]] = {"card": [], "echo": []}
    with serving(model_file("q8_0", "tiny"), "--capacity", "8", "--context-tokens", "1024") as card, echo() as bare:
        for _ in range(turns):
            for name, path in (("card", card), ("echo", bare)):
                trip, rate = _measured(path)
                trips[name].append(trip)
                rates[name].append(rate)
    return trips, rates


def _row(found: Spread) -> tuple[float, float, float]:
    return found.p50, found.p99, found.max


def _measured(path: Path) -> tuple[Spread, float]:
    caller = Caller(path)
    caller.one_by_one(WARM_UP)
    found = caller.one_by_one(CALLS), caller.pipelined(PIPELINED, IN_FLIGHT)
    caller.close()
    return found


def _under_load(path: Path) -> Spread:
    caller = Caller(path)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(generate, str(path), STREAMS)
        found = caller.until(load.done)
        load.result()
    caller.close()
    return found


@contextmanager
def echo() -> Iterator[Path]:
    """Run the echo for the length of a block; yields its socket."""
    with tempfile.TemporaryDirectory(prefix="echo-") as folder:
        path = Path(folder) / "echo.sock"
        with running([sys.executable, "-m", "benchmarks.echo", str(path)]):
            while not path.exists():
                time.sleep(0.01)
            yield path


if __name__ == "__main__":
    main()
