"""Costs in tests: a guard against hangs, calls, and CPU time beside that of a reference loop at the same moment."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# How long a test waits for an event that has to come: no promise, a guard against hangs on the busiest machine.
HANG_S = 300.0
# CPU time of the reference loop on an idle core of 2024.
_REFERENCE_S = 0.01
_ROUNDS = 400_000


class SetClock:
    """A clock that a test sets; it advances by `tick` seconds with every reading."""

    def __init__(self, now: float = 0.0, tick: float = 0.0) -> None:
        self.now = now
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class CpuTime:
    """The CPU time of a block, once it ended, in seconds of a core whose reference loop takes 10 ms.

    `scale` is how many of these a second of the block was.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.scale = 1.0


@contextmanager
def cpu_time() -> Iterator[CpuTime]:
    """Measure a block between two reference loops, which a slow or shared core slows as much."""
    spent = CpuTime()
    before = _reference()
    began = time.process_time()
    try:
        yield spent
    finally:
        took = time.process_time() - began
        spent.scale = _REFERENCE_S / max(before, _reference())
        spent.seconds = took * spent.scale


def lateness() -> float:
    """Return how much longer than its CPU time a loop of some ms takes, because other programs have the cores."""
    began, used = time.perf_counter(), _reference()
    return max(1.0, (time.perf_counter() - began) / used)


@contextmanager
def lateness_beside() -> Iterator[list[float]]:
    """Collect the lateness five times a second, beside a block."""
    found, ended = [lateness()], threading.Event()

    def collect() -> None:
        while not ended.wait(0.2):
            found.append(lateness())

    collecting = threading.Thread(target=collect)
    collecting.start()
    try:
        yield found
    finally:
        ended.set()
        collecting.join()


def _reference() -> float:
    began, total = time.thread_time(), 0
    for number in range(_ROUNDS):
        total += number % 7
    return time.thread_time() - began


def until(reached: Callable[[], object]) -> None:
    """Return once it is so, of files or of another process: they announce nothing."""
    deadline = time.monotonic() + HANG_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def calls(run: Callable[[], object]) -> int:
    """Return how many calls a function makes, with the calls of functions in C.

    No garbage is collected meanwhile: the finalizers of what earlier tests left would count.
    """
    count = 0

    def watch(_frame: FrameType, event: str, _value: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
