"""The daemon's cost outside llama.cpp: the processor time of a token, on a model that takes almost none itself.

`python -m benchmarks.overhead [--full]` compares daemon and engine with a bare loop over the same work, in turn. The
tiny model runs on one thread, so all of a process's time is work, not waiting for another thread.
"""

import argparse
import statistics
from typing import NamedTuple

import psutil

from benchmarks.generator import generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.streams import GREEDY
from benchmarks.targets.bare_loop import BareLoop
from benchmarks.targets.card import serving_process
from benchmarks.targets.case import Case
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.workload import Workload

STREAMS = (1, 8)
MORE_STREAMS = (1, 2, 4, 8, 16, 32, 64)
ANSWER = 200
TOKENS = 40_000
TURNS = 3


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the daemon costs outside llama.cpp.")
    parser.add_argument("--full", action="store_true", help="1 to 64 streams")
    full = parser.parse_args().full
    report = Report("overhead")
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
