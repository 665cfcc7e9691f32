"""What the scheduler wants done; the caller does it, in order."""

from dataclasses import dataclass, field
from typing import Any

from car_daemon.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the engine turn the request's prompt into tokens."""

    request: Request
    engine: int


@dataclass(frozen=True, slots=True)
class Run:
    """Start the request in the engine that leased it a sequence."""

    request: Request
    engine: int


@dataclass(frozen=True, slots=True)
class Halt:
    """Have the engine end the request at its next step; at its deadline with what it has."""

    key: int
    engine: int
    deadline: bool = False


@dataclass(frozen=True, slots=True)
class Complete:
    """Answer the request with what its engine produced."""

    request: Request


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer the request with an error of the table."""

    request: Request
    reason: str
    data: dict[str, Any] = field(default_factory=dict)


Action = Prepare | Run | Halt | Complete | Fail
