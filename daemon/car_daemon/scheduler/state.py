"""The state that the scheduler's parts share: open requests, counts, and what a request's end changes in them."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from car_daemon.host.devices import is_on
from car_daemon.scheduler.backlog import Backlog, QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.order import Charging, WaitingRequests
from car_daemon.scheduler.parking import Parkings
from car_daemon.scheduler.request import Action, Complete, Decisions, Fail, Halt, Request, State

QUEUED = (State.ACCEPTED, State.PREPARING, State.WAITING)
# An engine may take this long to end a request at its deadline; then the request is answered with the tokens it has.
_LAST_WORD_S = 1.0


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
        self.models: dict[str, ModelRequests] = {}  # by name; only those that have requests
        self._engines: dict[int, dict[int, Request]] = {}  # that prepare, run or park them
        self._supersede: dict[tuple[int, str], dict[int, Request]] = {}
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

    def older(self, request: Request) -> list[Request]:
        """Return the older requests of a request's `supersede` key; those for the same prompt are as old as it is."""
        if request.spec.supersede is None:
            return []
        same = self._supersede.get(request.spec.supersede, {})
        first = request.key if request.spec.group is None else request.spec.group
        return [each for each in same.values() if each.key < first]


# The reasons that count as failures; every other reason but `cancelled` is a rejection.
_FAILED = frozenset({"deadline_exceeded", "engine_lost", "slow_reader", "internal_error"})


class OutcomeTotals:
    """Requests by outcome: received = completed + failed + cancelled + rejected + in flight."""

    def __init__(self) -> None:
        self.received = 0
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0

    def __repr__(self) -> str:
        return f"<OutcomeTotals {self.received} received, {self.in_flight} in flight>"

    @property
    def in_flight(self) -> int:
        """Requests without a terminal answer."""
        return self.received - self.completed - self.failed - self.cancelled - self.rejected

    def refuse(self) -> None:
        """Count a request that was refused before it reached the scheduler."""
        self.received += 1
        self.rejected += 1

    def count_error(self, reason: str) -> None:
        """Count a request that ended with an error."""
        if reason == "cancelled":
            self.cancelled += 1
        elif reason in _FAILED:
            self.failed += 1
        else:
            self.rejected += 1


# A new sample's part in the moving mean.
_WEIGHT = 0.2


class ServiceRate:
    """Moving mean of the seconds from a request's first lease to its end."""

    def __init__(self) -> None:
        self._mean: float | None = None  # None before the first request ended

    def __repr__(self) -> str:
        return f"<ServiceRate {self._mean} s>"

    def observe(self, seconds: float) -> None:
        """Add a sample."""
        self._mean = seconds if self._mean is None else self._mean + _WEIGHT * (seconds - self._mean)

    def wait(self, position: int, capacity: int) -> float | None:
        """Return the seconds until the request at a position (0 is next) may start; None before the first sample."""
        return None if self._mean is None else self._mean * (position + 1) / capacity


class SharedState:
    """Requests, leases, places, waiters, charges and parkings; an end of a request changes all of them."""

    def __init__(self, gate: Gate, bounds: QueueBounds, age_after: float, decisions: Decisions) -> None:
        self.gate = gate
        self.decisions = decisions
        self.table = RequestTable()
        self.totals = OutcomeTotals()
        self.rate = ServiceRate()
        self.charging = Charging()
        self.backlog = Backlog(bounds, self.charging)
        self.waiting = WaitingRequests(self.charging, age_after)
        self.parkings = Parkings(self.waiting, gate, decisions)

    def __repr__(self) -> str:
        return f"<SharedState {self.totals!r}, {self.backlog!r}, {self.waiting!r}, {self.gate!r}>"

    def complete(self, request: Request, now: float) -> Complete:
        """Answer a request with the tokens that its engine produced."""
        self._end(request, now)
        self.totals.completed += 1
        return Complete(request)

    def fail(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> Fail:
        """Answer a request with an error."""
        self._end(request, now)
        self.totals.count_error(reason)
        return Fail(request, reason, data or {})

    def abandon(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> list[Action]:
        """Answer a request with an error and halt it in its engine."""
        engine = request.engine if request.state in (State.RUNNING, State.PARKED) else None
        actions: list[Action] = [self.fail(request, reason, now, data)]
        if engine is not None:
            actions.append(Halt(request.key, engine))
        return actions

    def expire(self, request: Request, now: float) -> list[Action]:
        """End a request past its limit: before its first token with an error, afterwards with the tokens it has."""
        if self.decisions.sink is not None:
            why = f"{request.produced} tokens after {now - request.spec.arrived:.3f} s, limit {request.limit} s"
            self.decisions.sink("expire", request, why)
        if request.halted_until is not None:
            return [self.complete(request, now)]
        if not request.produced or request.engine is None:
            return self.abandon(request, "deadline_exceeded", now)
        request.halted_until = now + _LAST_WORD_S
        self.table.limit(request)
        return [Halt(request.key, request.engine, deadline=True)]

    def stop(self, request: Request) -> None:
        """Take a running request out of the leases of its accounts."""
        self.parkings.stopped(request)
        self.waiting.returned(request)

    def _end(self, request: Request, now: float) -> None:
        if request.lane is not None:
            self.waiting.remove(request)
            self.parkings.left(request)
        if request.state in QUEUED:
            self.backlog.leave(request)
        if request.leased_at is not None:
            self.stop(request)
            self.charging.settle(request)
            if request.account is not None:
                request.account.let_go()
                request.account = None
            self.rate.observe(now - request.leased_at)
        request.move(State.ENDED)
        self.table.remove(request)
