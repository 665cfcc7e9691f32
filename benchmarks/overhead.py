"""The daemon's cost outside llama.cpp: the processor time of a token, and the round trip of a small call.

`python -m benchmarks.overhead [--full]` compares daemon and engine with a bare loop over the same work, in turn. The
tiny model runs on one thread, so all of a process's time is work, not waiting for another thread. Calls of
`inference/capacity` take turns with a bare echo; the caller is a blocking socket in one thread.
"""

import argparse
import asyncio
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import psutil
import uvloop
from msgspec import Raw, Struct

from benchmarks.comparison import Case
from benchmarks.generator import GREEDY, generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.bare_loop import BareLoop
from benchmarks.targets.card import serving, serving_process
from benchmarks.targets.process import running
from car_client.carctl.bench.figures import Spread, spread
from car_client.carctl.bench.workload import Lengths, Workload

STREAMS = (1, 8)
MORE_STREAMS = (1, 2, 4, 8, 16, 32, 64)
ANSWER = 200
TOKENS = 40_000
TURNS = 3
CALL = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity","params":{}}\n'
CALLS, WARM_UP = 5000, 500
PIPELINED, IN_FLIGHT = 40_000, 32
ECHO = (sys.executable, "-c", "import sys; from benchmarks.overhead import echo; echo(sys.argv[1])")


class Cost(NamedTuple):
    """Microseconds a token: of the processor in each process, and of the clock."""

    daemon: float
    engine: float
    bare: float
    wall: float
    bare_wall: float

    @property
    def outside(self) -> float:
        """The time spent outside llama.cpp."""
        return self.daemon + self.engine - self.bare


def case(streams: int) -> Case:
    """Return equal answers for so many streams."""
    workload = Workload(
        clients=streams,
        requests=max(streams, TOKENS // ANSWER // streams * streams),
        answers=Lengths(ANSWER, ANSWER),
        options=GREEDY,
    )
    model = str(model_file("q8_0", "tiny"))
    return Case(name=f"{streams} streams", model=model, sequences=streams, context_tokens=256, workload=workload)


def measured(one: Case) -> Cost:
    """Measure both once."""
    assert one.workload.requests is not None
    tokens = one.workload.requests * ANSWER
    options = ("--capacity", str(one.sequences), "--context-tokens", str(one.context_tokens))
    with serving_process(one.model, *options) as (socket, process):
        daemon = psutil.Process(process.pid)
        (engine,) = daemon.children()
        before = _seconds(daemon), _seconds(engine)
        figures = generate(str(socket), one.workload)
        daemon_s, engine_s = _seconds(daemon) - before[0], _seconds(engine) - before[1]
    with BareLoop().started(one) as run:
        bare = run(one.workload)
    return Cost(
        daemon_s / tokens * 1e6,
        engine_s / tokens * 1e6,
        bare.own_cpu / bare.tokens_per_s * 1e6,
        1e6 / figures.tokens_per_s,
        1e6 / bare.tokens_per_s,
    )


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Caller:
    """A connection that calls and waits."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))

    def one_by_one(self, calls: int) -> Spread:
        """Return the spread of round trips in ms."""
        taken = []
        for _ in range(calls):
            sent = time.perf_counter()
            self._socket.sendall(CALL)
            self._answers(1)
            taken.append((time.perf_counter() - sent) * 1000)
        return spread(taken)

    def pipelined(self, calls: int, in_flight: int) -> float:
        """Return calls a second, with so many in flight at any time."""
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


def calls(turns: int) -> tuple[dict[str, list[Spread]], dict[str, list[float]]]:
    """Return the round trips in ms and the calls a second of card and of the echo, in turn."""
    trips: dict[str, list[Spread]] = {"card": [], "echo": []}
    rates: dict[str, list[float]] = {"card": [], "echo": []}
    with serving(model_file("q8_0", "tiny"), "--capacity", "8", "--context-tokens", "1024") as card, echoing() as bare:
        for _ in range(turns):
            for name, path in (("card", card), ("echo", bare)):
                caller = Caller(path)
                caller.one_by_one(WARM_UP)
                trips[name].append(caller.one_by_one(CALLS))
                rates[name].append(caller.pipelined(PIPELINED, IN_FLIGHT))
                caller.close()
    return trips, rates


@contextmanager
def echoing() -> Iterator[Path]:
    """Run the echo for the length of a block; yields its socket."""
    with tempfile.TemporaryDirectory(prefix="echo-") as folder:
        path = Path(folder) / "echo.sock"
        with running([*ECHO, str(path)]):
            while not path.exists():
                time.sleep(0.01)
            yield path


class _Call(Struct):
    id: int
    method: str
    params: Raw = Raw(b"null")


class _Result(Struct):
    id: int
    result: Raw
    jsonrpc: str = "2.0"


class Echo(asyncio.Protocol):
    """One connection of the least that a daemon could be: uvloop, msgspec, and a line answered with its own params."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_Call).decode
        self._encode = msgspec.json.Encoder().encode
        self._rest = b""  # of an incomplete line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by asyncio)."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every line (called by asyncio)."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        answers = []
        for line in lines:
            call = self._decode(line)
            answers.append(self._encode(_Result(call.id, call.params)) + b"\n")
        self._transport.write(b"".join(answers))


def echo(path: str) -> None:
    """Echo on a socket until the process ends."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(Echo, path)
        await server.serve_forever()

    uvloop.run(serve())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the daemon costs outside llama.cpp.")
    parser.add_argument("--full", action="store_true", help="1 to 64 streams")
    full = parser.parse_args().full
    report = Report("overhead")
    trips, rates = calls(TURNS)
    for name in trips:
        p50 = statistics.median(trip.p50 for trip in trips[name]) * 1000
        p99 = statistics.median(trip.p99 for trip in trips[name]) * 1000
        report.say(f"{name}: round trip, idle: p50 us (p99)", p50, p99)
        report.say(f"{name}: pipelined, {IN_FLIGHT} in flight: calls/s", statistics.median(rates[name]), *rates[name])
    for streams in MORE_STREAMS if full else STREAMS:
        costs = [measured(case(streams)) for _ in range(TURNS)]
        outside = [cost.outside for cost in costs]
        report.say(f"{streams} streams: CPU outside llama.cpp, us a token", statistics.median(outside), *outside)
        for name in ("daemon", "engine", "bare", "wall", "bare_wall"):
            values = [getattr(cost, name) for cost in costs]
            report.say(f"{streams} streams:   {name.replace('_', ' ')}, us a token", statistics.median(values))
    report.close()


if __name__ == "__main__":
    main()
