"""The cost of the sandbox: a start to its first capacity answer, and the tokens of some streams, with it and without.

`python -m benchmarks.confinement` measures both in turn in one run; a token's processor time counts beside its rate,
because other programs change the rate alone.
"""

import asyncio
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psutil

from benchmarks.generator import GREEDY, SHORT, stream
from benchmarks.report import Report
from benchmarks.start import connect
from benchmarks.targets.card import COMMAND, serving_process
from benchmarks.targets.process import running
from car_base import guide
from car_client import Client

CHOICES = ("strict", "off")
STARTS = 21
ROUNDS = 16
STREAMS = 4
TOKENS = 600
CAPACITY = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity","params":{}}\n'


def main() -> None:
    """Measure and print."""
    report = Report("confinement")
    starts: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    for turn in range(STARTS):
        for choice in CHOICES if turn % 2 else reversed(CHOICES):
            starts[choice].append(_start_ms(choice))
    for choice in CHOICES:
        report.say(f"start to the first capacity answer, {choice}: p50 ms", median(starts[choice]), max(starts[choice]))
    pairs = zip(*starts.values(), strict=True)
    report.say("start, strict less off, turn by turn: median ms", median(one - other for one, other in pairs))
    with ExitStack() as stack:
        targets = {choice: stack.enter_context(Target(choice)) for choice in CHOICES}
        for turn in range(ROUNDS):
            for choice in CHOICES if turn % 2 else reversed(CHOICES):
                targets[choice].measure()
    strict, off = targets.values()
    for name in ("tokens_per_s", "cpu_us"):
        figures, others = getattr(strict, name), getattr(off, name)
        report.say(f"{name}: strict, off", median(figures), median(others))
        ratios = (one / other for one, other in zip(figures, others, strict=True))
        report.say(f"{name}: strict to off, turn by turn: median %", 100 * median(ratios))
    report.close()


class Target:
    """A daemon with the sandbox or without; the figures of each turn."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self._stack = ExitStack()
        self.tokens_per_s: list[float] = []
        self.cpu_us: list[float] = []  # of the engine for a token

    def __enter__(self) -> "Target":
        config = f'[daemon]\nsandbox = "{self._sandbox}"\n[models.mine]\npath = "{guide.PATH}"\nthreads = 1\n'
        served = serving_process("mine", "--capacity", str(STREAMS), config=config)
        self._socket, _ = self._stack.enter_context(served)
        with Client(str(self._socket)) as client:
            engine = client.call("daemon/status")["models"][0]["engines"][0]
        assert ("seccomp" in engine["sandbox"]) == (self._sandbox == "strict")
        self._engine = psutil.Process(engine["pid"])
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def measure(self) -> None:
        """Run one turn of streams."""
        before, begun = sum(self._engine.cpu_times()[:2]), time.perf_counter()
        asyncio.run(self._streams())
        tokens = STREAMS * TOKENS
        self.tokens_per_s.append(tokens / (time.perf_counter() - begun))
        self.cpu_us.append((sum(self._engine.cpu_times()[:2]) - before) / tokens * 1e6)

    async def _streams(self) -> None:
        await asyncio.gather(*(stream(str(self._socket), SHORT, TOKENS, GREEDY) for _ in range(STREAMS)))


def _start_ms(sandbox: str) -> float:
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path, config = Path(name) / "card.sock", Path(name) / "card.toml"
        config.write_text(f'[daemon]\nsandbox = "{sandbox}"\n', encoding="utf-8")
        command = [*COMMAND, "--socket", str(path), "--config", str(config), "--log-level", "error"]
        began = time.perf_counter()
        with running(command), socket.socket(socket.AF_UNIX) as peer:
            connect(peer, path)
            peer.sendall(CAPACITY)
            assert peer.makefile("rb").readline()
            return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
