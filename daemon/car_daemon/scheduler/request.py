"""A request: its spec, its state and the legal moves; the open requests by index; and the actions for a request."""

from collections import Counter
from collections.abc import Callable, Collection
from enum import StrEnum
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from car_base.host.devices import is_on
from car_daemon.scheduler.account import Account, Kind, LaneTarget, Path
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_protocol.infer import Priority

# The lower the rank, the more urgent the class.
RANKS: dict[Priority, int] = {"latency_critical": 0, "throughput": 1}
# The account that a request is charged to: an identity's number, with the label that the request names, else the pid.
Client = tuple[int, str | int]
# The number of an identity, and the name that it gives a session.
Session = tuple[int, str]
# Whose requests a key of `supersede` ends, and the key.
Supersede = tuple[str | int, ...]


class EngineFailure(NamedTuple):
    """The error that an engine ended a request with: a reason of the error table and its data."""

    reason: str
    data: dict[str, Any]


class State(StrEnum):
    """A request's place on its way from accepted to ended."""

    ACCEPTED = "accepted"
    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"


# Accepted: held back by a full queue, or without an engine to prepare it. Preparing: an engine turns its prompt into
# tokens. Waiting: prepared, needs a lease. Running: has a lease. Parked: gave its lease to another request and needs a
# new one, or is paused because its client does not read. An engine's death moves requests back: a running one waits
# again, once, unless part of its answer was sent; one that no engine left can run is prepared anew by the next, which
# may have other sequences or another file. One whose images another engine has encoded is prepared anew by the engine
# that has a sequence for it. Every state may end; the end is final.
MOVES: dict[State, frozenset[State]] = {
    State.ACCEPTED: frozenset({State.PREPARING, State.ENDED}),
    State.PREPARING: frozenset({State.WAITING, State.ACCEPTED, State.ENDED}),
    State.WAITING: frozenset({State.RUNNING, State.ACCEPTED, State.ENDED}),
    State.RUNNING: frozenset({State.WAITING, State.PARKED, State.ENDED}),
    State.PARKED: frozenset({State.RUNNING, State.WAITING, State.ENDED}),
    State.ENDED: frozenset(),
}


QUEUED = (State.ACCEPTED, State.PREPARING, State.WAITING)


class IllegalMove(Exception):
    """A request was moved in a way that MOVES does not allow: a defect of the scheduler."""


class RequestSpec(Struct, frozen=True, kw_only=True):
    """Everything about a request that is fixed when it arrives; times in seconds of the caller's clock."""

    key: int
    group: int | None = None  # the lowest key of the requests for the same prompt, if there are several
    behind: int = 0  # requests of the group with higher keys
    model: str
    arrived: float
    client: Client = (0, "")
    process: int = 0
    tenant: str = ""  # that the process sends the request for
    decides: bool = False  # it is a decision
    size: int = 0  # bytes
    priority: Priority = "latency_critical"
    wait: bool = True
    queue: bool = True
    timeout: float | None = None  # from its arrival
    queue_timeout: float | None = None  # from its arrival to its first lease
    supersede: Supersede | None = None
    progress: bool = False
    device: str | None = None
    session: Session | None = None


class Prompt(Struct, frozen=True):
    """A prepared prompt in tokens, the tokens that its answer needs room for, and the block hashes for the router.

    The tails of a decision take turns in the same cells: its room is negative. With `images` the engine that prepared
    it has them encoded.
    """

    tokens: int
    room: int
    blocks: tuple[int, ...] = ()
    images: bool = False


UNPREPARED = Prompt(0, 0)


class Parking(Struct):
    """A request's parkings for others, and its pause while its client does not read."""

    requested: bool = False  # its engine was sent `SendPark` and has not confirmed it
    count: int = 0  # parkings for other requests; a pause is not counted
    since: float = 0.0  # when it got its lease last
    rest: float = 0.0  # the seconds for which it was set aside before
    rank: int = 0  # of the class that it runs in
    took: bool = False  # another request was parked for it
    paused: bool = False  # it gets no lease until its client reads


class Request:
    """The spec and the mutable state of one request; times in seconds of the caller's clock."""

    __slots__ = (
        "account",
        "cached",
        "charged",
        "engine",
        "halted_until",
        "images_at",
        "images_moved",
        "key",
        "kind",
        "label",
        "leased_at",
        "limited",
        "model",
        "parking",
        "passed",
        "path",
        "position",
        "produced",
        "prompt",
        "prompt_done",
        "prompt_share",
        "retried",
        "sent",
        "spec",
        "state",
        "tally",
        "waits_since",
    )

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.key = spec.key
        self.model = spec.model
        self.state = State.ACCEPTED
        # The accounts that it is charged to: its user, the user's process, the tenant and the label, or the pid again.
        # A label's decisions have an account of their own: they would else wait for a whole answer of their program.
        self.path: Path = (spec.client[0], spec.process, spec.tenant, (spec.client[1], spec.decides))
        self.limited = spec.timeout is not None or spec.queue_timeout is not None  # it may expire
        self.waits_since = spec.arrived  # its arrival, or the last time it lost its lease
        self.prompt = UNPREPARED
        self.engine: int | None = None  # prepares, runs or parks it
        self.images_at: int | None = None  # the engine that has its images encoded, or had, if it died
        self.images_moved = False  # they are encoded a second time, by another engine than the first
        self.leased_at: float | None = None  # its first lease
        self.prompt_done = 0  # prompt tokens computed
        self.produced = 0  # answer tokens sampled
        self.sent = False  # its client got a part of its answer
        self.halted_until: float | None = None  # its engine was sent the deadline and may end it until then
        self.parking = Parking()
        self.retried = False  # an engine died with it
        self.passed = 0  # requests behind it that got a lease before it, because their prompts were resident
        self.position: int | None = None  # as last reported
        self.tally: Counter[State] | None = None  # of its model's requests by state, once it is in the table
        self.kind: Kind | None = None  # while it waits
        self.label: Account | None = None  # of its model's accounts, while it waits or has a lease
        self.account: Account | None = None  # the same, of the accounts over all models
        self.cached = 0  # prompt tokens found in the cache
        self.charged = 0.0  # tokens that its accounts were charged
        self.prompt_share = 1.0  # what a prompt token costs, in answer tokens

    def __repr__(self) -> str:
        return f"<Request {self.key} {self.model} {self.spec.priority} {self.state.value}>"

    def move(self, state: State) -> None:
        """Change the state; raises IllegalMove."""
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self!r} cannot become {state.value}")
        if self.tally is not None:
            self.tally[self.state] -= 1
            self.tally[state] += 1
        self.state = state

    def start_over(self) -> None:
        """Discard the progress made on a dead engine; allowed once."""
        self.retried = True
        self.parking.requested = self.parking.paused = self.parking.took = False
        self.produced = self.prompt_done = self.cached = 0
        self.images_moved = False

    @property
    def was_prepared(self) -> bool:
        """True once an engine has prepared it, also if that engine died since."""
        return self.prompt is not UNPREPARED

    @property
    def target(self) -> LaneTarget:
        """The engines that may run it; a parked request resumes in the engine with its cells."""
        return LaneTarget(self.model, self.spec.device, self.engine if self.state is State.PARKED else None)

    @property
    def expires_at(self) -> float | None:
        """The time at which `Scheduler.expire` has to act on it; None without a limit."""
        if self.halted_until is not None:
            return self.halted_until
        limit = self.limit
        return None if limit is None else self.spec.arrived + limit

    @property
    def limit(self) -> float | None:
        """The limit in force, from its arrival: before its first lease the shorter of both, afterwards `timeout`."""
        timeout, queue_timeout = self.spec.timeout, self.spec.queue_timeout
        if self.leased_at is not None or queue_timeout is None:
            return timeout
        return queue_timeout if timeout is None else min(timeout, queue_timeout)


class ModelRequests:
    """The requests of one model, by key and by the device that they name, and their number in each state."""

    def __init__(self) -> None:
        self.states: Counter[State] = Counter()
        self.devices: dict[str | None, dict[int, Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.devices.values()))

    def __repr__(self) -> str:
        return f"<ModelRequests {len(self)}>"

    @property
    def queued(self) -> int:
        """The requests without a lease that had none yet, or lost it with an engine."""
        return sum(self.states[state] for state in QUEUED)


class RequestTable:
    """Owner of the open requests and of their indexes."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}  # by key
        self.models: dict[str, ModelRequests] = {}  # by name; only models that have requests
        self._engines: dict[int, dict[int, Request]] = {}  # that prepare, run or park them
        self._supersede: dict[Supersede, dict[int, Request]] = {}
        self._limits: LazyHeap[float, int] = LazyHeap()  # keys by the time at which they expire

    def __repr__(self) -> str:
        return f"<RequestTable {len(self.requests)} requests of {len(self.models)} models>"

    def add(self, request: Request) -> None:
        """Add a new request."""
        self.requests[request.key] = request
        model = self.models.get(request.model)
        if model is None:
            model = self.models[request.model] = ModelRequests()
        request.tally = model.states
        model.states[request.state] += 1
        model.devices.setdefault(request.spec.device, {})[request.key] = request
        if request.spec.supersede is not None:
            self._supersede.setdefault(request.spec.supersede, {})[request.key] = request
        if request.limited:
            self.limit(request)

    def remove(self, request: Request) -> None:
        """Remove a request that ended."""
        key, model = request.key, self.models[request.model]
        del self.requests[key]
        self.assign(request, None)
        if request.limited:
            self._limits.discard(key)
        request.tally = None
        model.states[request.state] -= 1
        same_device = model.devices[request.spec.device]
        del same_device[key]
        if not same_device:
            del model.devices[request.spec.device]
            if not model.devices:
                del self.models[request.model]
        if (supersede := request.spec.supersede) is not None:
            del self._supersede[supersede][key]
            if not self._supersede[supersede]:
                del self._supersede[supersede]

    def assign(self, request: Request, engine: int | None) -> None:
        """Note the engine that prepares, runs or parks a request."""
        if request.engine is not None:
            del self._engines[request.engine][request.key]
            if not self._engines[request.engine]:
                del self._engines[request.engine]
        request.engine = engine
        if engine is not None:
            self._engines.setdefault(engine, {})[request.key] = request

    def limit(self, request: Request) -> None:
        """Note the time at which a request expires, which changes with its first lease and its halt."""
        expires_at = request.expires_at
        if expires_at is None:
            self._limits.discard(request.key)
        else:
            self._limits.set(request.key, expires_at)

    def next_limit(self) -> float | None:
        """Return the time at which the next request expires."""
        return self._limits.least()

    def expired(self, now: float) -> list[Request]:
        """Return the requests that expire by now, the first first; each is to be ended or given another limit."""
        due = []
        while (limit := self._limits.least()) is not None and limit <= now:
            key = self._limits.pop()
            assert key is not None
            due.append(self.requests[key])
        return due

    def of_engine(self, engine: int) -> list[Request]:
        """Return the requests that an engine prepares, runs or parks, in the order of their arrival."""
        return [request for _, request in sorted(self._engines.get(engine, {}).items())]

    def unserved(self, model: str, left: Collection[str]) -> list[Request]:
        """Return the requests of a model that none of the devices that are `left` can run."""
        requests = self.models.get(model)
        devices = {} if requests is None else requests.devices
        lost = [wanted for wanted in devices if not any(is_on(device, wanted) for device in left)]
        return [devices[device][key] for device in lost for key in devices[device]]

    def superseded_by(self, key: Supersede) -> int:
        """Return the number of requests that a new request with this key ends."""
        return len(self._supersede.get(key, ()))

    def older(self, request: Request) -> list[Request]:
        """Return the older requests of a request's `supersede` key; a request for the same prompt is as old as this."""
        if request.spec.supersede is None:
            return []
        same = self._supersede.get(request.spec.supersede, {})
        first = request.key if request.spec.group is None else request.spec.group
        return [*takewhile(lambda each: each.key < first, same.values())]  # in the order of their keys


class SendPrepare(Struct, frozen=True, eq=False):
    """Have the engine turn the request's prompt into tokens."""

    request: Request
    engine: int


class SendRun(Struct, frozen=True, eq=False):
    """Start the request in the engine of its lease."""

    request: Request
    engine: int


class SendPark(Struct, frozen=True, eq=False):
    """Have the engine save the request's cells and free its sequence."""

    key: int
    engine: int


class SendResume(Struct, frozen=True, eq=False):
    """Continue a parked request in the engine that parked it."""

    key: int
    engine: int


class SendHalt(Struct, frozen=True, eq=False):
    """Have the engine end the request at its next step; at its deadline with the tokens it has."""

    key: int
    engine: int
    deadline: bool = False


class SendYield(Struct, frozen=True, eq=False):
    """Have the engine read these prompts only while it writes no answer."""

    keys: list[int]
    engine: int


class QueueProgress(Struct, frozen=True, eq=False):
    """Report a waiting request's position (0 is next) and the ms until its turn, None while unknown."""

    request: Request
    position: int
    eta_ms: int | None


class Remind(Struct, frozen=True, eq=False):
    """Call `expire` at a time, when running work may give way to what waits now."""

    time: float


class Complete(Struct, frozen=True, eq=False):
    """Answer the request with the tokens that its engine produced."""

    request: Request


class Fail(Struct, frozen=True, eq=False):
    """Answer the request with an error of the table."""

    request: Request
    reason: str
    data: dict[str, Any] = {}


Action = SendPrepare | SendRun | SendPark | SendResume | SendHalt | SendYield | QueueProgress | Remind | Complete | Fail

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
    "yield",  # its prompt waits for short answers beside it
    "retry",  # its engine died and it goes back into the queue
    "lose",  # its engine died and it is answered with an error
    "expire",  # past a limit
]


class Decisions:
    """The sink of decisions: verb, request and reason. While it is None no reason is formatted, which costs nothing."""

    def __init__(self, sink: Callable[[Verb, Request, str], None] | None = None) -> None:
        self.sink = sink
