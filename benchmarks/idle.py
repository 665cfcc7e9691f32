"""The cost of 500 idle connections: memory of the daemon, and throughput of the busy ones.

`python -m benchmarks.idle`; the model has random weights and 135M dimensions.
"""

import socket
import statistics
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.generator import generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.streams import GREEDY
from benchmarks.targets.card import serving_process
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.workload import Workload

CONNECTIONS = 500
CALL = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity","params":{"subscribe":true}}\n'
WORK = Workload(clients=8, requests=24, answers=Lengths(60, 60), options=GREEDY)
TURNS = 3


def main() -> None:
    """Measure and print."""
    report = Report("idle")
    with serving_process(model_file("q8_0"), "--capacity", "8", "--context-tokens", "1024") as (path, process):
        daemon = psutil.Process(process.pid)
        generate(str(path), WORK)
        alone, beside, grown = [], [], []
        for _ in range(TURNS):
            alone.append(generate(str(path), WORK).tokens_per_s)
            before = daemon.memory_info().rss
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    _connect(path, stack)
                grown.append((daemon.memory_info().rss - before) / 2**20)
                beside.append(generate(str(path), WORK).tokens_per_s)
    # What the first connections took is not taken again: the memory of those that left is used anew.
    report.say(f"{CONNECTIONS} idle connections: memory MiB, first time", grown[0], *grown[1:])
    report.say("8 streams beside none: tokens/s", statistics.median(alone), *alone)
    ratios = [one / two for one, two in zip(beside, alone, strict=True)]
    report.say(f"  beside {CONNECTIONS}, ratio", statistics.median(ratios), *ratios)
    report.close()


def _connect(path: Path, stack: ExitStack) -> None:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.connect(str(path))
    connection.sendall(CALL)
    assert connection.recv(1 << 16).endswith(b"\n")


if __name__ == "__main__":
    main()
