"""What an engine behind a TLS connection costs beside one on a socketpair: streams of the guide on both, in turn.

`python -m benchmarks.cluster_links [--links N]` prints the daemon's processor time a token, the gaps between tokens,
the time from a start to engines that are up, and the daemon's memory with N links. The placer is that of the tests, so
that Ray's own share is not in the figures; engines and both ends of the connection share this machine.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import psutil

from benchmarks.report import Report
from benchmarks.streams import GREEDY, SHORT, stream
from benchmarks.targets.process import running
from car_client import Client
from car_client.carctl.load.timed_answer import TimedAnswer
from car_daemon import guide

MIB = 1 << 20
STREAMS = 8
TOKENS = 600
TURNS = 9
_START_S = 60.0
_LOCAL = ("-c", "from car_daemon.main import main; main()")
_PLACED = (str(Path(__file__).parents[1] / "tests" / "local_cluster.py"),)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=20)
    arguments = parser.parse_args()
    report = Report("cluster_links")
    with ExitStack() as stack:
        here = stack.enter_context(Served(_LOCAL, "here", 1))
        placed = stack.enter_context(Served(_PLACED, "ray", 1))
        for turn in range(TURNS):
            for each in (here, placed) if turn % 2 else (placed, here):
                each.measure()
    report.say("processor time of the daemon a token, us: engine here", median(here.cpu_us))
    report.say("processor time of the daemon a token, us: engine by TLS", median(placed.cpu_us))
    for name, part in (("p50", 49), ("p99", 98)):
        local, remote = ([quantiles(turn, n=100)[part] for turn in each.gaps] for each in (here, placed))
        report.say(f"gap between tokens, {name}, ms: engine here", median(local))
        report.say(f"gap between tokens, {name}, ms: engine by TLS", median(remote))
        report.say(
            f"gap, {name}: by TLS to here, turn by turn", median(r / h for r, h in zip(remote, local, strict=True))
        )
    with Served(_PLACED, "ray", 1) as one:
        alone = one.resident
        report.say("an engine is up after the daemon's start, s", one.up_s)
    with Served(_PLACED, "ray", arguments.links) as many:
        report.say(
            f"daemon's memory with {arguments.links} links, more than with one, MiB", (many.resident - alone) / MIB
        )
        report.say(f"{arguments.links} engines are up after, s", many.up_s)
    report.close()


class Served:
    """A daemon whose engines are on this machine, or placed; the figures of each turn."""

    def __init__(self, program: tuple[str, ...], place: str, engines: int) -> None:
        self._daemon = _daemon(program, place, engines)
        self._engines = engines
        self.cpu_us: list[float] = []  # of the daemon for a token
        self.gaps: list[list[float]] = []  # in ms
        self.up_s = 0.0

    def __enter__(self) -> "Served":
        begun = time.monotonic()
        self._socket, self._process = self._daemon.__enter__()
        while not self._socket.exists():
            time.sleep(0.01)  # nothing announces a socket that is not there yet
        with Client(str(self._socket), timeout=_START_S) as client:
            client.infer("warm up", max_tokens=1)
            while client.call("daemon/status")["models"][0].get("up", 1) < self._engines:
                time.sleep(0.02)  # apart, so that status requests take nothing from the engines that start
        self.up_s = time.monotonic() - begun
        return self

    def __exit__(self, *error: object) -> None:
        self._daemon.__exit__(None, None, None)

    @property
    def resident(self) -> int:
        """Bytes of the daemon's process."""
        return self._process.memory_info().rss

    def measure(self) -> None:
        """Run one turn of streams."""
        before = sum(self._process.cpu_times()[:2])
        answers = asyncio.run(self._streams())
        self.cpu_us.append((sum(self._process.cpu_times()[:2]) - before) / (STREAMS * TOKENS) * 1e6)
        self.gaps.append([gap for answer in answers for gap in answer.gaps_ms])

    async def _streams(self) -> list[TimedAnswer]:
        return await asyncio.gather(*(stream(str(self._socket), SHORT, TOKENS, GREEDY) for _ in range(STREAMS)))


@contextmanager
def _daemon(program: tuple[str, ...], place: str, engines: int) -> Iterator[tuple[Path, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        socket, file = Path(folder) / "card.sock", Path(folder) / "card.toml"
        # A copy, because the guide itself has no path in frames.
        model = shutil.copy(guide.PATH, folder)
        table = f'[models.mine]\npath = "{model}"\nthreads = 1\nsequences = {STREAMS}\n'
        if place == "ray":
            table += f'place = "ray"\nreplicas = {engines}\n[cluster]\naddress = "local:1"\n'
        file.write_text(f'default_model = "mine"\n{table}', encoding="utf-8")
        with running([sys.executable, *program, "--socket", str(socket), "--config", str(file)]) as process:
            yield socket, psutil.Process(process.pid)


if __name__ == "__main__":
    main()
