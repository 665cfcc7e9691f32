"""Other programs on the machine during a measurement."""

import os
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")

_LOOK_S = 0.5


class Bystanders:
    """Measures when others leave the processor alone, as far as patience goes; `share` is theirs of all cores."""

    def __init__(self, quiet: float, patience_s: float) -> None:
        self._quiet = quiet
        self._until = time.monotonic() + patience_s

    def without(self, measure: Callable[[], T]) -> tuple[T, float]:
        """Return what was measured, and the share of others meanwhile; again where it was too much."""
        while True:
            self._wait()
            found, share = _beside(measure)
            if share <= self._quiet or self._impatient:
                return found, share

    @property
    def _impatient(self) -> bool:
        return time.monotonic() > self._until

    def _wait(self) -> None:
        while not self._impatient and _beside(lambda: time.sleep(_LOOK_S))[1] > self._quiet:
            pass


def _beside(act: Callable[[], T]) -> tuple[T, float]:
    """Return what an act returns, and the share of the cores that others had."""
    began, busy, own = time.perf_counter(), _busy_s(), own_seconds()
    found = act()
    whole = (time.perf_counter() - began) * (os.cpu_count() or 1)
    return found, max(0.0, _busy_s() - busy - (own_seconds() - own)) / whole


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def own_seconds() -> float:
    """Return the processor time of this process and its descendants so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return ended + sum(map(_busy_of, psutil.Process().children(recursive=True)))


def _busy_of(child: psutil.Process) -> float:
    """Return the time of a child that runs, with that of its own children that ended."""
    try:
        times = child.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
