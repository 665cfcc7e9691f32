"""The order in which requests get leases: the accounts that are charged, resident prompts, and all that wait."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from car_daemon.scheduler.account import TURN, Account, Kind, LaneTarget, Name, charge
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.lane import LOOKED_AT, Lane
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.request import RANKS, Request, State

# A sixteen thousandth of the least weight; sums of up to 500,000 users of the greatest weight are exact.
_GRAIN = 2.0**-24


class Charging:
    """The accounts of all users: in a lane for each model, and in one over all models.

    Each model has virtual times of its own, because a user of a fast model would else wait for an hour of everybody's
    service at a slow one. The times over all models decide only between models that wait for the machine's limit.
    """

    def __init__(self) -> None:
        self._weights: dict[Name, float] = {}  # by user; 1 for the others
        self.overall = Lane(self._weights)
        self.lanes: dict[str, Lane] = {}  # by model
        self._due: dict[Request, float] = {}  # tokens

    def __repr__(self) -> str:
        return f"<Charging {len(self.overall.root.children)} users>"

    def weight(self, user: Name) -> float:
        """Return a user's weight."""
        return self._weights.get(user, 1.0)

    def set_weights(self, weights: Mapping[int, float]) -> None:
        """Divide service by other weights from now on.

        They are multiples of a power of two, so that their sums are exact while users come and go: if some 1e-16 were
        left of the sum without users, a clock that is divided by it would leap.
        """
        self._weights.clear()
        for user, weight in weights.items():
            self._weights[user] = round(weight / _GRAIN) * _GRAIN
        for tree in (self.overall, *self.lanes.values()):
            tree.set_weights()

    def lane(self, model: str) -> Lane:
        """Return the lane of a model."""
        lane = self.lanes.get(model)
        if lane is None:
            lane = self.lanes[model] = Lane(self._weights)
        return lane

    def charge(self, request: Request, tokens: float) -> None:
        """Charge a request that has a lease, once the order is to be known: at every token that would cost more."""
        request.charged += tokens
        self._due[request] = self._due.get(request, 0.0) + tokens

    def settle(self) -> None:
        """Charge what is due, before a lease, a wait or their end."""
        for request, tokens in self._due.items():
            if request.label is not None and request.account is not None:
                charge(tokens, request.label, request.account)
        self._due.clear()

    def cancelled(self, request: Request) -> None:
        """Charge a lease that its client or its deadline ends within a turn once more: to send again would gain turns.

        Without a token it pays the whole turn: a chunk of its prompt that is being computed is charged to nobody.
        """
        rest = TURN - request.charged
        if request.state is State.RUNNING and rest > 0:
            self.charge(request, min(request.charged, rest) if request.produced else rest)


# A request is passed by this many others at most, so it gets its lease at most so many leases later than by fairness.
MOST_PASSED = 4


class CacheOrder:
    """The waiting requests whose prompts are resident: in idle sequences of an engine, until its next lease."""

    def __init__(self) -> None:
        self.resident: dict[int, frozenset[int]] = {}  # keys of requests by engine

    def __repr__(self) -> str:
        return f"<CacheOrder {sum(map(len, self.resident.values()))} resident>"

    def announce(self, engine: int, keys: Iterable[int]) -> None:
        """Note the requests whose prompt an idle sequence of an engine has for the most part."""
        self.resident[engine] = frozenset(islice(keys, LOOKED_AT))

    def leased(self, engine: int) -> None:
        """Forget what was resident in an engine: its next request may have taken the place."""
        self.resident.pop(engine, None)

    def first(self, lane: Lane, kind: Kind, requests: dict[int, Request]) -> list[Request]:
        """Return the request of a kind that goes first, after the requests that it passes; `requests` are by key.

        It is the first one by fairness, or else the next with a resident prompt if the order allows that to go first.
        """
        keys, first = frozenset().union(*self.resident.values()), requests[lane.first(kind)]
        label, cost = lane.waiters[first.key].label, first.prompt.tokens + TURN
        ranked = {key: lane.waiters[key] for key in keys if key in lane.waiters}
        alike = {key for key, each in ranked.items() if each.kind == kind and _alike(label, each.label, cost)}
        if not alike or first.key in alike:
            return [first]
        way: list[Request] = []
        for request in (requests[key] for key in islice(lane.order(kind), LOOKED_AT)):
            way.append(request)
            if request.key in alike:
                return way
            if request.passed >= MOST_PASSED:
                break
        return [first]


def _alike(ahead: Account, behind: Account, cost: float) -> bool:
    """Return whether a request of the label behind would come before the one ahead, if that got one lease more."""
    while ahead.parent is not behind.parent:
        assert ahead.parent is not None
        assert behind.parent is not None
        ahead, behind = ahead.parent, behind.parent
    return behind.time - ahead.time <= cost / ahead.weight


class WaitingRequests:
    """Prepared and parked requests: a lane for each model.

    A free sequence goes to the class first, and `throughput` work that waited `age_after` seconds counts as
    latency_critical; in a class to the user, process, tenant and label that were served least. Of requests that this
    ranks alike, `cached` names the one that goes first.
    """

    def __init__(self, charging: Charging, age_after: float) -> None:
        self.age_after = age_after
        self.requests: dict[int, Request] = {}  # by key
        self.newcomers: list[Request] = []  # since the last plan of parkings
        self._seeking: dict[Account, None] = {}  # labels that came to have no lease since the last plan of parkings
        self.touched: dict[LaneTarget, None] = {}  # that changed since the last plan
        self.watchers: Counter[LaneTarget] = Counter()  # requests whose client follows their places
        self.cached = CacheOrder()
        self._charging = charging
        self._open: dict[str, dict[Kind, None]] = {}  # kinds that may find a free sequence, by model
        self._ageing: LazyHeap[float, int] = LazyHeap()  # `throughput` requests by the begin of their wait

    def __repr__(self) -> str:
        parked = sum(request.state is State.PARKED for request in self.requests.values())
        return f"<WaitingRequests {len(self.requests)}, {parked} of them parked>"

    def __contains__(self, request: Request) -> bool:
        return request.key in self.requests

    def count(self, model: str) -> int:
        """Return the number of requests that wait for a model."""
        return len(self._charging.lane(model).waiters)

    def add(self, request: Request, now: float) -> None:
        """Add a request; the wait of one that ran before begins now, or goes on if it ran for less than it waited."""
        self._charging.settle()
        if request.leased_at is not None:
            request.waits_since = now - max(0.0, request.parking.rest - (now - request.parking.since))
        self.requests[request.key] = request
        self.newcomers.append(request)
        rank = RANKS[request.spec.priority]
        if rank and not self.aged(request, now):
            self._ageing.set(request.key, request.waits_since)
        else:
            rank = 0
        kind = request.kind = Kind(rank, request.target)
        request.label = self._charging.lane(request.model).add(request.key, request.path, kind)
        request.account = self._charging.overall.add(request.key, request.path, kind)
        self.seek(request.label)
        if request.spec.progress:
            self.watchers[kind.target] += 1
        self._look(request.model, kind)

    def lease_at_once(self, request: Request, gate: Gate) -> int | None:
        """Lease a sequence to a prepared request if nothing waits; return its engine, or None without one.

        The outcome is that of `add` and `leases`, because no other request could come first.
        """
        engine = None if self.requests else gate.try_lease(request)
        if engine is not None:
            self._charging.settle()
            self._lease(request)
        return engine

    def remove(self, request: Request) -> None:
        """Remove a request that gets no lease."""
        self._forget(request)
        request.label = request.account = None

    def leases(self, gate: Gate, now: float, handed: Iterable[Request] = ()) -> Iterator[tuple[Request, int]]:
        """Remove and yield each request that gets a lease, with its engine; a full target does not block the others.

        Requests to which a sequence was `handed` go first.
        """
        self._charging.settle()
        self.age(now)
        for request in handed:
            if request in self and (engine := gate.try_lease(request)) is not None:
                self._leased(request, engine)
                yield request, engine
        while not gate.exhausted and (found := self._next(gate)) is not None:
            lane, kind = found
            request, passed = self.requests[lane.first(kind)], list[Request]()
            if self.cached.resident:
                *passed, request = self.cached.first(lane, kind, self.requests)
            engine = gate.try_lease(request)
            if engine is not None:
                for each in passed:
                    each.passed += 1
                self._leased(request, engine)
                yield request, engine
            elif passed:
                self.cached.resident.clear()
            else:
                del self._open[kind.target.model][kind]

    def planned(self) -> None:
        """Forget what changed: parkings and positions were planned."""
        self.newcomers.clear()
        self._seeking.clear()
        self.touched.clear()

    def returned(self, request: Request) -> None:
        """Count the end of a request's lease, or of a part of it before a parking."""
        if request.kind is None and request.label is not None and request.account is not None:
            self._charging.settle()
            held = not request.parking.requested
            self._charging.lanes[request.model].end(request.label, lease=True, held=held)
            self._charging.overall.end(request.account, lease=True, held=held)
            self.seek(request.label)
            request.label = request.account = None

    def seek(self, account: Account) -> None:
        """Note a label that may have no lease while requests wait that never had one."""
        if not account.held and account.queues:
            self._seeking[account] = None

    def seekers(self, *, new: bool) -> Iterator[Request]:
        """Yield for each tenant and kind the oldest unparked request of its label that goes first without a lease.

        With `new` only labels since the last plan count.
        """
        lanes = self._charging.lanes
        if new:
            firsts: dict[tuple[Account | None, Kind], Account] = {}
            for label in self._seeking:
                for kind in () if label.held else _unparked(label):
                    first = firsts.get((label.parent, kind), label)
                    firsts[label.parent, kind] = min(first, label, key=lambda each: each.rank)
            found = [(kind, label) for (_, kind), label in firsts.items()]
        else:
            kinds = [kind for lane in lanes.values() for kind in _unparked(lane.root)]
            found = [(kind, label) for kind in kinds for label in lanes[kind.target.model].lacking(kind)]
        for kind, label in found:
            yield self.requests[lanes[kind.target.model].first(kind, label)]

    def freed(self, model: str, engines: Collection[int] | None) -> None:
        """Let the requests of a model look for a free sequence: of some engines, or of any."""
        if (lane := self._charging.lanes.get(model)) is not None:
            for kind in lane.root.queues:
                if engines is None or kind.target.engine is None or kind.target.engine in engines:
                    self._look(model, kind)

    def freed_all(self) -> None:
        """Let all requests look for a free sequence."""
        for model in self._charging.lanes:
            self.freed(model, None)

    def of_model(self, model: str) -> list[Request]:
        """Return the requests that wait for a model, the oldest first."""
        return [self.requests[key] for key in sorted(self._charging.lane(model).waiters)]

    def order(self, target: LaneTarget) -> Iterator[Request]:
        """Yield the requests of a target in the order in which they get leases, if nothing changes."""
        lane = self._charging.lane(target.model)
        for rank in sorted(set(RANKS.values())):
            yield from (self.requests[key] for key in lane.order(Kind(rank, target)))

    def positions(self, target: LaneTarget) -> Iterator[tuple[int, Request]]:
        """Yield the first 64 requests of a target with their positions in that order; 0 is next."""
        return enumerate(islice(self.order(target), LOOKED_AT))

    def aged(self, request: Request, now: float) -> bool:
        """Return True if a request has waited long enough to rank as latency_critical."""
        return now - request.waits_since >= self.age_after

    def age(self, now: float) -> None:
        """Move the `throughput` requests that have waited long enough to the kinds of latency_critical."""
        while (since := self._ageing.least()) is not None and now - since >= self.age_after:
            key = self._ageing.pop()
            assert key is not None
            request = self.requests[key]
            request.kind = kind = Kind(0, request.target)
            self._charging.lanes[request.model].change(key, kind)
            self._charging.overall.change(key, kind)
            self._look(request.model, kind)

    def _lease(self, request: Request) -> None:
        """Count the lease of a request; the accounts of a request that waits are then the same."""
        request.label = self._charging.lane(request.model).begin(request.path, lease=True)
        request.account = self._charging.overall.begin(request.path, lease=True)

    def _leased(self, request: Request, engine: int) -> None:
        self._lease(request)
        self._forget(request)
        self.cached.leased(engine)

    def _look(self, model: str, kind: Kind) -> None:
        self.touched[kind.target] = None
        self._open.setdefault(model, {})[kind] = None

    def _forget(self, request: Request) -> None:
        kind = request.kind
        assert kind is not None
        request.kind = None
        self.touched[kind.target] = None
        if request.spec.progress:
            self.watchers[kind.target] -= 1
            if not self.watchers[kind.target]:
                del self.watchers[kind.target]
        if kind.rank:
            self._ageing.discard(request.key)
        self._charging.lanes[request.model].remove(request.key)
        self._charging.overall.remove(request.key)
        del self.requests[request.key]

    def _next(self, gate: Gate) -> tuple[Lane, Kind] | None:
        """Return the kind whose first request may find a sequence and goes first, and the lane of that order.

        Models are independent of each other, unless they wait for the limit of the machine.
        """
        while self._open:
            models = list(self._open) if gate.machine_limit is not None else [next(iter(self._open))]
            lane = self._charging.lanes[models[0]] if len(models) == 1 else self._charging.overall
            if (kind := lane.first_of(kind for model in models for kind in self._open[model])) is not None:
                return lane, kind
            for model in models:
                del self._open[model]
        return None


def _unparked(account: Account) -> list[Kind]:
    return [kind for kind in account.queues if kind.target.engine is None]
