"""One thing to measure, and what measures it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from car_client.carctl.load.figures import Figures
from car_client.carctl.load.workload import Workload


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
