"""Outputs of the scheduler: actions, which the caller carries out in order, and its decisions for a debug log."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from car_daemon.scheduler.request import Request


class Prepare(Struct, frozen=True, eq=False):
    """Have the engine turn the request's prompt into tokens."""

    request: Request
    engine: int


class Run(Struct, frozen=True, eq=False):
    """Start the request in the engine of its lease."""

    request: Request
    engine: int


class Park(Struct, frozen=True, eq=False):
    """Have the engine save the request's cells and free its sequence."""

    key: int
    engine: int


class Resume(Struct, frozen=True, eq=False):
    """Continue a parked request in the engine that parked it."""

    key: int
    engine: int


class Halt(Struct, frozen=True, eq=False):
    """Have the engine end the request at its next step; at its deadline with the tokens it has."""

    key: int
    engine: int
    deadline: bool = False


class Progress(Struct, frozen=True, eq=False):
    """Report a waiting request's position (0 is next) and the ms until its turn, None while unknown."""

    request: Request
    position: int
    eta_ms: int | None


class Remind(Struct, frozen=True, eq=False):
    """Call `expire` at a time, when positions are reported that came too soon after others."""

    time: float


class Complete(Struct, frozen=True, eq=False):
    """Answer the request with the tokens that its engine produced."""

    request: Request


class Fail(Struct, frozen=True, eq=False):
    """Answer the request with an error of the table."""

    request: Request
    reason: str
    data: dict[str, Any] = {}


Action = Prepare | Run | Park | Resume | Halt | Progress | Remind | Complete | Fail

# The kinds of decisions.
Verb = Literal[
    "prepare",  # an engine prepares the prompt
    "hold_back",  # the queue is full and blocks
    "let_in",  # the queue has room for a request that was held back
    "refuse",  # answered with an error on arrival, or once prepared
    "drop",  # answered with an error in favour of a newer request
    "supersede",  # cancelled by a newer request of the same key
    "route",  # a replica was chosen among several
    "lease",  # a sequence for its first run
    "resume",  # a sequence for a parked request
    "park",  # it gives its sequence up
    "retry",  # its engine died and it goes back into the queue
    "lose",  # its engine died and it is answered with an error
    "expire",  # past a limit
]


class Decisions:
    """The sink of decisions: verb, request and reason. While it is None no reason is formatted, which costs nothing."""

    def __init__(self, sink: Callable[[Verb, Request, str], None] | None = None) -> None:
        self.sink = sink
