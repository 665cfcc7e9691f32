"""What the scheduler wants done; the caller does it, in order."""

from typing import Any

from msgspec import Struct

from car_daemon.scheduler.request import Request


class Prepare(Struct, frozen=True, eq=False):
    """Have the engine turn the request's prompt into tokens."""

    request: Request
    engine: int


class Run(Struct, frozen=True, eq=False):
    """Start the request in the engine that leased it a sequence."""

    request: Request
    engine: int


class Halt(Struct, frozen=True, eq=False):
    """Have the engine end the request at its next step; at its deadline with what it has."""

    key: int
    engine: int
    deadline: bool = False


class Complete(Struct, frozen=True, eq=False):
    """Answer the request with what its engine produced."""

    request: Request


class Fail(Struct, frozen=True, eq=False):
    """Answer the request with an error of the table."""

    request: Request
    reason: str
    data: dict[str, Any] = {}


Action = Prepare | Run | Halt | Complete | Fail
