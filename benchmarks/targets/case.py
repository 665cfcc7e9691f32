"""One thing to measure, and what measures it."""

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


class Target(Protocol):
    """Something that answers requests, or does the same work without any."""

    @property
    def name(self) -> str:
        """What a table calls it."""

    def measure(self, case: Case) -> Figures:
        """Start, run the workload, stop."""
