"""Targets that take turns with a workload, so that other programs on the machine disturb all of them alike."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from statistics import median
from typing import Protocol, TypeVar

import psutil
from msgspec import Struct

from car_client.carctl.bench.figures import Figures
from car_client.carctl.bench.workload import Workload

T = TypeVar("T")

_LOOK_S = 0.5


class Case(Struct, frozen=True, kw_only=True):
    """A workload on a model, served by so many sequences of so many tokens."""

    name: str
    model: str
    sequences: int
    context_tokens: int
    workload: Workload


# Runs a workload on something that has started.
Measure = Callable[[Workload], Figures]


class Target(Protocol):
    """Something that answers requests, or does the same work without any."""

    @property
    def name(self) -> str:
        """The label in tables."""

    def started(self, case: Case) -> AbstractContextManager[Measure]:
        """Run for the length of a block, ready for the workload of a case; it costs nothing while it waits."""
        ...


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


class Compared(Struct, frozen=True):
    """The runs of each target on one case, in the order in which they took turns; what others had of the cores."""

    case: Case
    runs: dict[str, list[Figures]]
    bystanders: dict[str, list[float]]

    def tokens_per_s(self, target: str) -> float:
        """Return the median of a target's throughput."""
        return median(run.tokens_per_s for run in self.runs[target])

    def median_of(self, target: str, read: Callable[[Figures], float]) -> float:
        """Return the median of a figure of a target."""
        return median(map(read, self.runs[target]))

    def ratio(self, target: str, other: str) -> float:
        """Return the median of the ratios of throughput, turn by turn."""
        pairs = zip(self.runs[target], self.runs[other], strict=True)
        return median(one.tokens_per_s / two.tokens_per_s for one, two in pairs)


def compare(case: Case, targets: Sequence[Target], turns: int, bystanders: Bystanders) -> Compared:
    """Measure every target in every turn, all of them started before; every other turn goes backwards."""
    runs: dict[str, list[Figures]] = {target.name: [] for target in targets}
    others: dict[str, list[float]] = {target.name: [] for target in targets}
    with ExitStack() as stack:
        measures = [(target.name, stack.enter_context(target.started(case))) for target in targets]
        for turn in range(turns):
            for name, measure in measures if turn % 2 == 0 else reversed(measures):
                figures, share = bystanders.without(partial(measure, case.workload))
                runs[name].append(figures)
                others[name].append(share)
    return Compared(case, runs, others)
