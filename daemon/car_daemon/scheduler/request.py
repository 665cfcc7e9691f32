"""One request on its way: its state, and the legal moves between states."""

from enum import Enum
from typing import Any, NamedTuple

from car_protocol.infer import Priority

# The lower the rank, the more urgent the class.
RANKS: dict[Priority, int] = {"latency_critical": 0, "throughput": 1}
# Who a request is for: a user and a label of theirs, or the process that asked.
Client = tuple[int, str | int]
# A user, and what they call their session.
Session = tuple[int, str]
# Requests that the same engines may run: of a model, on a device or any, in the engine that parked them or any.
Target = tuple[str, str | None, int | None]


class Failure(NamedTuple):
    """What an engine ended a request with: a reason of the error table and its data."""

    reason: str
    data: dict[str, Any]


class State(Enum):
    """Where a request is."""

    ACCEPTED = "accepted"
    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"


# Accepted: held back by a full queue, or no engine to prepare it yet. Preparing: an engine turns its prompt into
# tokens. Waiting: prepared, for a lease. Running: it holds a lease. Parked: it gave its lease to a more urgent
# request and waits for another, or it is held for a client that does not read. Work goes back when an engine dies:
# what it ran runs again, once, unless something of it was sent, and what no other engine can run is prepared anew by
# the next one, which may have other sequences or files. Every state may end; nothing leaves the end.
MOVES: dict[State, frozenset[State]] = {
    State.ACCEPTED: frozenset({State.PREPARING, State.ENDED}),
    State.PREPARING: frozenset({State.WAITING, State.ACCEPTED, State.ENDED}),
    State.WAITING: frozenset({State.RUNNING, State.ACCEPTED, State.ENDED}),
    State.RUNNING: frozenset({State.WAITING, State.PARKED, State.ENDED}),
    State.PARKED: frozenset({State.RUNNING, State.WAITING, State.ENDED}),
    State.ENDED: frozenset(),
}


class IllegalMove(Exception):
    """A request was moved in a way that MOVES does not know: a defect of the scheduler."""


class Request:
    """What the scheduler knows of a request; times in seconds of the caller's clock, `size` in bytes."""

    def __init__(
        self,
        key: int,
        model: str,
        *,
        arrived: float,
        client: Client = (0, ""),
        process: int = 0,
        size: int = 0,
        priority: Priority = "latency_critical",
        wait: bool = True,
        queue: bool = True,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        supersede: tuple[int, str] | None = None,
        progress: bool = False,
        device: str | None = None,
        session: Session | None = None,
    ) -> None:
        self.key = key
        self.model = model
        self.client = client
        self.process = process
        self.size = size
        self.priority: Priority = priority
        self.wait = wait
        self.queue = queue
        self.supersede = supersede
        self.progress = progress
        self.device = device
        self.session = session
        self.arrived = arrived
        self.deadline = None if timeout is None else arrived + timeout
        self.queue_deadline = None if queue_timeout is None else arrived + queue_timeout
        # Mutable state: where it is, since when it waits while it does, its tokens once prepared and what a router
        # knows its prompt by, the engine and time of its lease, what its engine did and what of that its client saw,
        # until when an engine that was told of the deadline may end it, its parkings, whether it is kept from having a
        # lease, whether it had to start again, its last position.
        self.state = State.ACCEPTED
        self.waits_since = arrived
        self.prompt_tokens = 0
        self.max_tokens = 0
        self.blocks: tuple[int, ...] = ()
        self.engine: int | None = None
        self.leased_at: float | None = None
        self.prompt_done = 0
        self.produced = 0
        self.sent = False
        self.halted_until: float | None = None
        self.parking = False
        self.parkings = 0
        self.yielded = False
        self.held = False
        self.reran = False
        self.position: int | None = None

    def __repr__(self) -> str:
        return f"<Request {self.key} {self.model} {self.priority} {self.state.value}>"

    def move(self, state: State) -> None:
        """Change the state; raises IllegalMove."""
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self!r} cannot become {state.value}")
        self.state = state

    def start_over(self) -> None:
        """Forget what a dead engine did; it may happen once."""
        self.reran = True
        self.parking = self.held = False
        self.produced = self.prompt_done = 0

    @property
    def was_prepared(self) -> bool:
        """Whether an engine has prepared it, be it one that is gone."""
        return self.prompt_tokens > 0

    @property
    def target(self) -> Target:
        """What it needs a sequence of."""
        return self.model, self.device, self.engine if self.state is State.PARKED else None

    @property
    def expires_at(self) -> float | None:
        """The next deadline that applies: until the first lease, the one for queueing counts too."""
        if self.halted_until is not None:
            return self.halted_until
        if self.leased_at is not None:
            return self.deadline
        return self._first_limit

    @property
    def limit_ms(self) -> int:
        """The limit that ends one that has some first, in milliseconds from its arrival."""
        assert self._first_limit is not None
        return round((self._first_limit - self.arrived) * 1000)

    @property
    def _first_limit(self) -> float | None:
        limits = (limit for limit in (self.deadline, self.queue_deadline) if limit is not None)
        return min(limits, default=None)
