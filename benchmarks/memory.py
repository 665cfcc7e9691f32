"""Growth of the daemon: its memory after a thousand requests, ten thousand, and with --full a hundred thousand.

`python -m benchmarks.memory [--full]`; short answers of a tiny model.
"""

import argparse

import psutil

from benchmarks.generator import generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.streams import GREEDY
from benchmarks.targets.card import serving_process
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.workload import Workload

COUNTS = (1_000, 10_000)
FULL_COUNTS = (*COUNTS, 100_000)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The daemon's memory after many requests.")
    parser.add_argument("--full", action="store_true", help="up to 100,000 requests")
    counts = FULL_COUNTS if parser.parse_args().full else COUNTS
    report = Report("memory")
    with serving_process(model_file("q8_0", "tiny"), "--capacity", "8", "--context-tokens", "256") as (path, process):
        daemon = psutil.Process(process.pid)
        (engine,) = daemon.children()
        report.say("MiB at the begin: daemon (engine)", _mib(daemon), _mib(engine))
        done = 0
        for count in counts:
            figures = generate(str(path), _requests(count - done, seed=count))
            done = count
            report.say(f"MiB after {count} requests: daemon (engine)", _mib(daemon), _mib(engine))
            report.say("  requests/s", figures.tokens_per_s / 2)
    report.close()


def _requests(count: int, seed: int) -> Workload:
    return Workload(clients=8, requests=count, answers=Lengths(2, 2), options=GREEDY, seed=seed)


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


if __name__ == "__main__":
    main()
