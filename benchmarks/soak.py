"""A mixed load with a fault every minute, and whether the daemon keeps its books and gives everything back.

`python -m benchmarks.soak [--minutes M] [--seed N]` prints a line a sample and a summary; exit code 1 on any violation.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import psutil

from benchmarks.soaking.books import Books, Json
from benchmarks.soaking.client import Peer
from benchmarks.soaking.faults import Faults, configuration
from benchmarks.soaking.load import Lane

SAMPLE_S = 5.0
FAULT_S = 60.0
WARM_UP_S = 30.0
CAPACITY = 5
LANES = 4
START_S = 60.0
MIB = 1 << 20
# What a process may have grown by in the end: the daemon's buffers, and an engine's cache of prefixes.
DAEMON_BYTES = 48 * MIB
ENGINE_BYTES = 96 * MIB
_OUTCOMES = ("completed", "failed", "cancelled", "rejected", "in_flight")


class Held(NamedTuple):
    """Resources of the daemon and its engine while only the watcher is connected."""

    daemon_bytes: int
    engine_bytes: int
    descriptors: int
    threads: int
    engine_descriptors: int
    connections: int


@dataclass
class Watcher:
    """Looks at the daemon through a connection of its own."""

    peer: Peer
    books: Books
    process: psutil.Process
    busy: list[float]
    slowest_s: float = 0.0
    received: int = 0

    async def status(self) -> Json:
        """Return the status, and check that it adds up."""
        asked = time.monotonic()
        status: Json = (await self.peer.call("daemon/status"))["result"]
        self.slowest_s = max(self.slowest_s, time.monotonic() - asked)
        totals = status["totals"]
        self.books.check(totals["received"] == sum(totals[name] for name in _OUTCOMES), f"totals: {totals}")
        self.books.check(all(count >= 0 for count in totals.values()), f"a negative total: {totals}")
        self.books.check(totals["received"] >= self.received, "the totals went back")
        self.received = totals["received"]
        open_ones = sum(each["in_flight"] for each in status["connections"])
        self.books.check(totals["in_flight"] <= open_ones, f"{totals['in_flight']} in flight, {open_ones} owned")
        return status

    async def sample(self, since: float) -> None:
        """Print one line."""
        status = await self.status()
        capacity, totals = status["capacity"], status["totals"]
        self.busy.append(capacity["in_use"] / CAPACITY)
        engines = status["models"][0]["engines"]
        engine = f"{engines[0]['rss_bytes'] // MIB} MiB {engines[0]['restarts']} restarts" if engines else "none"
        outcomes = " ".join(f"{name} {totals[name]}" for name in ("received", *_OUTCOMES))
        print(
            f"{time.monotonic() - since:6.0f} s  {outcomes}  in use {capacity['in_use']} queued {capacity['queued']} "
            f"connections {len(status['connections'])}  daemon {self.process.memory_info().rss // MIB} MiB "
            f"{self.process.num_fds()} descriptors  engine {engine}",
            flush=True,
        )

    async def quiet(self) -> Held:
        """Return what is held once nothing is in flight and nobody else is connected."""
        deadline = time.monotonic() + START_S
        while True:
            status = await self.status()
            engines = status["models"][0]["engines"]
            alone = len(status["connections"]) == 1 and not status["totals"]["in_flight"]
            if alone and engines and status["capacity"]["state"] == "ready" and not status["capacity"]["in_use"]:
                break
            if time.monotonic() > deadline:
                self.books.violate(f"not idle after {START_S} s: {status['totals']}, {status['connections']}")
                break
            await asyncio.sleep(0.1)  # what was left a moment ago is on its way out
        engine = psutil.Process(engines[0]["pid"])
        return Held(
            self.process.memory_info().rss,
            engine.memory_info().rss,
            self.process.num_fds(),
            self.process.num_threads(),
            engine.num_fds(),
            len(status["connections"]),
        )


@contextmanager
def daemon() -> Iterator[tuple["subprocess.Popen[bytes]", Path, Path, Path]]:
    """Run a daemon on the built-in model; yields its process, socket, configuration and log."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        socket, config, log = folder / "card.sock", folder / "card.toml", folder / "log"
        config.write_text(configuration(16), encoding="utf-8")
        command = [sys.executable, "-c", "from car_daemon.main import main; main()", "--socket", str(socket)]
        command += ["--config", str(config), "--capacity", str(CAPACITY), "--log-level", "debug"]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            while not socket.exists():
                assert process.poll() is None, log.read_text(encoding="utf-8")
                time.sleep(0.05)  # nothing announces a socket that is not there yet
            yield process, socket, config, log
        finally:
            process.terminate()
            process.wait(START_S)


async def play(socket: Path, books: Books, seed: int, seconds: float, watcher: Watcher, faults: Faults | None) -> None:
    """Have the load for so long, with a line a sample and, where there are faults, one of them a minute."""
    until = asyncio.Event()
    lanes = [asyncio.create_task(Lane(socket, books, seed * 1000 + number).run(until)) for number in range(LANES)]
    began = time.monotonic()
    due = began + FAULT_S / 2
    fault: asyncio.Task[str] | None = None
    order = faults.endless() if faults else iter(())
    while time.monotonic() < began + seconds:
        await asyncio.sleep(SAMPLE_S)
        await watcher.sample(began)
        if fault is not None and fault.done():
            print(f"fault: {fault.result()}", flush=True)
            fault = None
        if faults is not None and fault is None and time.monotonic() >= due:
            due += FAULT_S
            fault = asyncio.ensure_future(next(order)())
    until.set()
    await asyncio.gather(*lanes)
    if fault is not None:
        print(f"fault: {await fault}", flush=True)


async def soak(process: "subprocess.Popen[bytes]", socket: Path, config: Path, minutes: float, seed: int) -> Books:
    """Warm up, soak, and compare what is held before and after."""
    books = Books()
    watcher = Watcher(await Peer.connect(socket, books), books, psutil.Process(process.pid), [])
    faults = Faults(socket, config, process.pid, books, seed)
    await watcher.peer.call("infer", {"prompt": "Hi", "max_tokens": 1})
    # The event loop's buffer for reading stays once anything large was read.
    await watcher.peer.call("tokenize", {"text": "a " * MIB})
    await play(socket, books, seed + 1, WARM_UP_S, watcher, None)
    base = await watcher.quiet()
    print(f"base: {base}", flush=True)
    watcher.busy.clear()
    await play(socket, books, seed, minutes * 60, watcher, faults)
    end = await watcher.quiet()
    totals = (await watcher.status())["totals"]
    books.compare(totals)
    for name, bound in {"daemon_bytes": DAEMON_BYTES, "engine_bytes": ENGINE_BYTES}.items():
        grown = getattr(end, name) - getattr(base, name)
        books.check(grown <= bound, f"{name} grew by {grown}")
    for name in ("descriptors", "threads", "engine_descriptors", "connections"):
        books.check(getattr(end, name) == getattr(base, name), f"{name}: {base} before, {end} after")
    print(f"end:  {end}\ntotals: {totals}\nerrors: {dict(books.errors)}; {books.left} left, {books.others} others")
    print(f"in use: {fmean(watcher.busy):.2f} of capacity; slowest status {watcher.slowest_s * 1000:.0f} ms")
    await watcher.peer.leave()
    return books


def main() -> None:
    """Soak, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with daemon() as (process, socket, config, log):
        books = asyncio.run(soak(process, socket, config, arguments.minutes, arguments.seed))
        process.terminate()
        code = process.wait(START_S)
        books.check(code == 0, f"the daemon ended with {code}")
        books.check("Traceback" not in log.read_text(encoding="utf-8"), "a traceback in the log")
    print(f"{len(books.violations)} violations")
    sys.exit(1 if books.violations else 0)


if __name__ == "__main__":
    main()
