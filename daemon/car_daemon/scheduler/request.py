"""One request on its way: its state, and the legal moves between states."""

from enum import Enum

from car_protocol.infer import Priority


class State(Enum):
    """Where a request is."""

    ACCEPTED = "accepted"
    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


# Accepted: no engine to prepare it yet. Preparing: an engine turns its prompt into tokens. Waiting: prepared, for a
# lease. Running: it holds a lease. Work goes back when an engine dies: what it prepared is kept, what it ran runs
# again, once, unless something of it was sent. Every state may end; nothing leaves the end.
MOVES: dict[State, frozenset[State]] = {
    State.ACCEPTED: frozenset({State.PREPARING, State.ENDED}),
    State.PREPARING: frozenset({State.WAITING, State.ACCEPTED, State.ENDED}),
    State.WAITING: frozenset({State.RUNNING, State.ENDED}),
    State.RUNNING: frozenset({State.WAITING, State.ENDED}),
    State.ENDED: frozenset(),
}


class IllegalMove(Exception):
    """A request was moved in a way that MOVES does not know: a defect of the scheduler."""


class Request:
    """What the scheduler knows of a request; times in seconds of the caller's clock."""

    def __init__(
        self,
        key: int,
        model: str,
        *,
        arrived: float,
        priority: Priority = "latency_critical",
        wait: bool = True,
        timeout: float | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        self.key = key
        self.model = model
        self.priority: Priority = priority
        self.wait = wait
        self.arrived = arrived
        self.deadline = None if timeout is None else arrived + timeout
        self.queue_deadline = None if queue_timeout is None else arrived + queue_timeout
        # Mutable state: where it is, the engine and the time of its lease, what its engine produced and what of
        # that its client saw, whether it was told to end at its deadline, and whether it had to start again.
        self.state = State.ACCEPTED
        self.engine: int | None = None
        self.leased_at: float | None = None
        self.produced = 0
        self.sent = False
        self.overdue = False
        self.reran = False

    def __repr__(self) -> str:
        return f"<Request {self.key} {self.model} {self.priority} {self.state.value}>"

    def move(self, state: State) -> None:
        """Change the state; raises IllegalMove."""
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self!r} cannot become {state.value}")
        self.state = state

    @property
    def expires_at(self) -> float | None:
        """The next deadline that applies: until the first lease, the one for queueing counts too."""
        if self.overdue:
            return None
        if self.state is State.RUNNING or self.reran:
            return self.deadline
        deadlines = [limit for limit in (self.deadline, self.queue_deadline) if limit is not None]
        return min(deadlines, default=None)
