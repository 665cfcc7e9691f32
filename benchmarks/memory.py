"""The daemon's memory: after a thousand requests, ten thousand, with --full a hundred thousand; with idle connections.

`python -m benchmarks.memory [--full]`; short answers of a tiny model, and the throughput of streams of random weights
of 135M dimensions beside the idle connections.
"""

import argparse
import socket
import statistics
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.generator import GREEDY, generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving_process
from car_client.carctl.bench.workload import Lengths, Workload

COUNTS = (1_000, 10_000)
FULL_COUNTS = (*COUNTS, 100_000)
CONNECTIONS = 500
CALL = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity","params":{"subscribe":true}}\n'
WORK = Workload(clients=8, requests=24, answers=Lengths(60, 60), options=GREEDY)
TURNS = 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The daemon's memory after many requests, and with idle connections.")
    parser.add_argument("--full", action="store_true", help="up to 100,000 requests")
    counts = FULL_COUNTS if parser.parse_args().full else COUNTS
    report = Report("memory")
    _requests(report, counts)
    _idle(report)
    report.close()


def _requests(report: Report, counts: tuple[int, ...]) -> None:
    with serving_process(model_file("q8_0", "tiny"), "--capacity", "8", "--context-tokens", "256") as (path, process):
        daemon = psutil.Process(process.pid)
        (engine,) = daemon.children()
        report.say("MiB at the begin: daemon (engine)", _mib(daemon), _mib(engine))
        done = 0
        for count in counts:
            work = Workload(clients=8, requests=count - done, answers=Lengths(2, 2), options=GREEDY, seed=count)
            figures = generate(str(path), work)
            done = count
            report.say(f"MiB after {count} requests: daemon (engine)", _mib(daemon), _mib(engine))
            report.say("  requests/s", figures.tokens_per_s / 2)


def _idle(report: Report) -> None:
    with serving_process(model_file("q8_0"), "--capacity", "8", "--context-tokens", "1024") as (path, process):
        daemon = psutil.Process(process.pid)
        generate(str(path), WORK)
        alone, beside, grown = [], [], []
        for _ in range(TURNS):
            alone.append(generate(str(path), WORK).tokens_per_s)
            before = _mib(daemon)
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    _connect(path, stack)
                grown.append(_mib(daemon) - before)
                beside.append(generate(str(path), WORK).tokens_per_s)
    # Later connections use the memory of the first ones again.
    report.say(f"{CONNECTIONS} idle connections: memory MiB, first time", grown[0], *grown[1:])
    report.say("8 streams beside none: tokens/s", statistics.median(alone), *alone)
    ratios = [one / two for one, two in zip(beside, alone, strict=True)]
    report.say(f"  beside {CONNECTIONS}, ratio", statistics.median(ratios), *ratios)


def _connect(path: Path, stack: ExitStack) -> None:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.connect(str(path))
    connection.sendall(CALL)
    assert connection.recv(1 << 16).endswith(b"\n")


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


if __name__ == "__main__":
    main()
