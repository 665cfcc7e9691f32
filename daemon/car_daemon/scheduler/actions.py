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


class Park(Struct, frozen=True, eq=False):
    """Have the engine set the request aside and free its sequence."""

    key: int
    engine: int


class Resume(Struct, frozen=True, eq=False):
    """Go on with a parked request in the engine that leased it a sequence again."""

    key: int
    engine: int


class Halt(Struct, frozen=True, eq=False):
    """Have the engine end the request at its next step; at its deadline with what it has."""

    key: int
    engine: int
    deadline: bool = False


class Progress(Struct, frozen=True, eq=False):
    """Tell a waiter its position (0 is next) and the milliseconds until its turn, None where unknown."""

    request: Request
    position: int
    eta_ms: int | None


class Complete(Struct, frozen=True, eq=False):
    """Answer the request with what its engine produced."""

    request: Request


class Fail(Struct, frozen=True, eq=False):
    """Answer the request with an error of the table."""

    request: Request
    reason: str
    data: dict[str, Any] = {}


Action = Prepare | Run | Park | Resume | Halt | Progress | Complete | Fail
