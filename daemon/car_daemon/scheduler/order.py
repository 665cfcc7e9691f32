"""The order in which requests get leases: what they are charged, resident prompts, and all that wait."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from car_daemon.scheduler.fair_tree import ADVANCE, Account, Branch
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.lane import Lane, LaneTarget
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.request import RANKS, Request, State


class Charging:
    """The accounts of all users, and what running requests are charged."""

    def __init__(self) -> None:
        self.root = Account(None, "")
        self._weights: dict[int, float] = {}  # by uid; 1 for the others

    def __repr__(self) -> str:
        return f"<Charging {len(self.root.children)} users>"

    def weight(self, uid: int) -> float:
        """Return a user's weight."""
        return self._weights.get(uid, 1.0)

    def set_weights(self, weights: dict[int, float]) -> None:
        """Divide service by other weights from now on."""
        self._weights = dict(weights)
        for name, account in self.root.children.items():
            account.weight = self.weight(int(name))

    def started(self, request: Request, prompt_share: float) -> None:
        """Charge the prompt and the advance at a request's first lease; a prompt token costs `prompt_share` tokens."""
        request.prompt_share = prompt_share
        request.charged = self.cost(request)
        assert request.account is not None
        request.account.charge(request.charged)

    def cost(self, request: Request) -> float:
        """Return what a lease is charged when it begins."""
        return request.prompt.tokens * request.prompt_share + ADVANCE

    def advanced(self, request: Request, cached: int) -> None:
        """Charge what exceeds the advance; refund prompt tokens found in the cache."""
        if request.account is None:
            return
        if cached:
            refund = min(cached * request.prompt_share, request.charged)
            request.cached += cached
            request.charged -= refund
            request.account.refund(refund, ADVANCE)
        used = self._used(request)
        if used > request.charged:
            request.account.charge(used - request.charged)
            request.charged = used

    def settle(self, request: Request) -> None:
        """Refund the unused part of what was charged."""
        unused = request.charged - self._used(request)
        if unused > 0 and request.account is not None:
            request.account.refund(unused, ADVANCE)
        request.charged = 0.0

    def _used(self, request: Request) -> float:
        return max(0, request.prompt_done - request.cached) * request.prompt_share + request.produced


# A request is passed by this many others at most, so it gets its lease at most so many leases later than by fairness.
MOST_PASSED = 4
# Requests of a lane that are looked at, those of an engine with resident prompts, which reports no more, and labels
# without a lease for which one plan parks.
_LOOKED_AT = 16


class CacheOrder:
    """The waiting requests whose prompts are resident: in idle sequences of an engine, until its next lease."""

    def __init__(self, charging: Charging) -> None:
        self.resident: dict[int, frozenset[int]] = {}  # keys of requests by engine
        self._charging = charging

    def __repr__(self) -> str:
        return f"<CacheOrder {sum(map(len, self.resident.values()))} resident>"

    def announce(self, engine: int, keys: Iterable[int]) -> None:
        """Note the requests of which an idle sequence of an engine has most of the prompt."""
        self.resident[engine] = frozenset(islice(keys, _LOOKED_AT))

    def leased(self, engine: int) -> None:
        """Forget what was resident in an engine: its next request may have taken the place."""
        self.resident.pop(engine, None)

    def first(self, lane: Lane, requests: dict[int, Request]) -> list[Request]:
        """Return the request of a lane that goes first, after those that it passes; `requests` are by key.

        It is the first one by fairness, or else the next with a resident prompt if the order allows that to go first.
        """
        keys, first = frozenset().union(*self.resident.values()), requests[lane.first()]
        alike = {key for key in keys if key in lane.leaves and self._alike(lane, first, requests[key])}
        if not alike or first.key in alike:
            return [first]
        way: list[Request] = []
        ordered = lane.order(lambda key: self._charging.cost(requests[key]))
        for request in (requests[key] for key in islice(ordered, _LOOKED_AT)):
            way.append(request)
            if request.key in alike:
                return way
            if request.passed >= MOST_PASSED:
                break
        return [first]

    def _alike(self, lane: Lane, first: Request, request: Request) -> bool:
        """Return whether a request would come before the first one, if that got one lease more."""
        ahead, behind = _siblings(lane.leaves[first.key], lane.leaves[request.key])
        return behind.time - ahead.time <= self._charging.cost(first) / ahead.account.weight


def _siblings(one: Branch, other: Branch) -> tuple[Branch, Branch]:
    """Return two leaves, or the branches above them at the level where they part."""
    while one.parent is not other.parent:
        assert one.parent is not None
        assert other.parent is not None
        one, other = one.parent, other.parent
    return one, other


# A rank below all others: it is computed once a lane comes first.
_UNKNOWN: tuple[float, ...] = (-1.0,)


class WaitingRequests:
    """Prepared and parked requests: one lane for each class and target.

    A free sequence goes to the class first, where `throughput` work that waited `age_after` seconds is in the lanes of
    latency_critical; in a class to the user, process, tenant and label that were served least. Of requests that this
    ranks alike, `cached` names the one that goes first.
    """

    def __init__(self, charging: Charging, age_after: float) -> None:
        self.age_after = age_after
        self.requests: dict[int, Request] = {}  # by key
        self.newcomers: list[Request] = []  # since the last plan of parkings
        self._seeking: dict[Branch, Lane] = {}  # labels that may have no lease, with requests that never had one
        self._seeking_anew: dict[Branch, Lane] = {}  # of them, those since the last plan of parkings
        self.touched: dict[Lane, None] = {}  # lanes that changed since the last plan
        self.watchers: Counter[LaneTarget] = Counter()  # requests whose client follows their places
        self.cached = CacheOrder(charging)
        self._charging = charging
        self._lanes: dict[tuple[int, LaneTarget], Lane] = {}
        self._numbers: dict[int, Lane] = {}  # the same, by the number of the root
        self._of_model: dict[str, dict[int | None, dict[Lane, None]]] = {}  # the same, by model and parking engine
        self._waiting: Counter[str] = Counter()  # by model
        self._open: LazyHeap[tuple[float, ...], int] = LazyHeap()  # lanes that may find a free sequence
        self._ageing: LazyHeap[float, int] = LazyHeap()  # `throughput` requests by the begin of their wait

    def __repr__(self) -> str:
        parked = sum(request.state is State.PARKED for request in self.requests.values())
        return f"<WaitingRequests {len(self.requests)}, {parked} of them parked, in {len(self._lanes)} lanes>"

    def __contains__(self, request: Request) -> bool:
        return request.key in self.requests

    def count(self, model: str) -> int:
        """Return the number of requests that wait for a model."""
        return self._waiting[model]

    def add(self, request: Request, now: float) -> None:
        """Add a request; the wait of one that ran before begins now."""
        if request.leased_at is not None:
            request.waits_since = now
        self.requests[request.key] = request
        self._waiting[request.model] += 1
        self.newcomers.append(request)
        rank = RANKS[request.spec.priority]
        if rank and not self.aged(request, now):
            self._ageing.set(request.key, request.waits_since)
        else:
            rank = 0
        self._enter(request, rank)

    def lease_at_once(self, request: Request, gate: Gate, now: float) -> int | None:
        """Lease a sequence to a prepared request before which nothing waits; return its engine, or None without one.

        The outcome is that of `add` and `leases`, because no other request could come first.
        """
        if self.requests:
            return None
        rank = RANKS[request.spec.priority]
        if rank and self.aged(request, now):
            rank = 0
        lane = self._lane(rank, LaneTarget(request.model, request.spec.device, None))
        engine = gate.try_lease(request)
        if engine is not None:
            request.leaf = leaf = lane.root.lease(request.path, self._charging.weight(request.path[0]))
            request.account = leaf.account.hold(request.account)
        return engine

    def remove(self, request: Request) -> None:
        """Remove a request."""
        assert request.lane is not None
        lane = request.lane
        lane.remove(request.key)
        self._forget(request, lane)

    def leases(self, gate: Gate, now: float, handed: Iterable[Request] = ()) -> Iterator[tuple[Request, int]]:
        """Remove and yield each request that gets a lease, with its engine; a full target does not block the others.

        Requests to which a sequence was `handed` go first.
        """
        self.age(now)
        for request in handed:
            if request in self and (engine := gate.try_lease(request)) is not None:
                self._leased(request, in_turn=False)
                self.cached.leased(engine)
                yield request, engine
        while not gate.exhausted and (lane := self._next_lane()) is not None:
            request, passed = self.requests[lane.first()], list[Request]()
            if self.cached.resident:
                *passed, request = self.cached.first(lane, self.requests)
            engine = gate.try_lease(request)
            if engine is not None:
                for each in passed:
                    each.passed += 1
                self._leased(request, in_turn=not passed)
                self.cached.leased(engine)
                yield request, engine
            elif passed:
                self.cached.resident.clear()
            else:
                self._open.discard(lane.root.number)

    def planned(self) -> None:
        """Forget what changed: parkings and positions were planned."""
        self.newcomers.clear()
        self._seeking_anew.clear()
        self.touched.clear()

    def returned(self, request: Request) -> None:
        """Count the end of a request's lease, or of a part of it before a parking."""
        if request.leaf is not None:
            leaf, request.leaf = request.leaf, None
            lane = self._numbers[leaf.returned(counted=not request.parking.requested).number]
            self.seek(leaf.account)
            if lane.target.engine is not None:
                self._prune(lane)

    def seek(self, account: Account) -> None:
        """Note a label that may have no lease while requests wait that never had one."""
        if not account.leases:
            for leaf in account.branches:
                if leaf.waiting and (lane := self._numbers[leaf.root.number]).target.engine is None:
                    self._seeking[leaf] = self._seeking_anew[leaf] = lane

    def seekers(self, *, new: bool) -> Iterator[Request]:
        """Yield the oldest request of one label without a lease for each tenant: of all, or since the last plan."""
        tenants: Counter[Branch | None] = Counter()
        for leaf, lane in list((self._seeking_anew if new else self._seeking).items()):
            if not leaf.waiting or leaf.account.leases:
                self._seeking.pop(leaf, None)
            elif not tenants[leaf.parent] and len(tenants) < _LOOKED_AT:
                tenants[leaf.parent] += 1
                yield self.requests[lane.oldest(leaf)]

    def freed(self, model: str, engines: Collection[int] | None) -> None:
        """Let the lanes of a model look for a free sequence: of some engines, or of any."""
        lanes = self._of_model.get(model)
        if lanes is not None:
            parking = lanes if engines is None else (None, *engines)
            for lane in [lane for engine in parking for lane in lanes.get(engine, ())]:
                self._look(lane)

    def freed_all(self) -> None:
        """Let all lanes look for a free sequence."""
        for lane in self._lanes.values():
            self._look(lane)

    def length(self, target: LaneTarget) -> int:
        """Return the number of requests that wait for a target."""
        return sum(len(lane) for rank in RANKS.values() if (lane := self._lanes.get((rank, target))) is not None)

    def lanes_of(self, model: str) -> list[Lane]:
        """Return the lanes of a model with waiting requests, the urgent ones first."""
        lanes = [lane for lanes in self._of_model.get(model, {}).values() for lane in lanes if len(lane)]
        return sorted(lanes, key=lambda lane: lane.rank)

    def order(self, target: LaneTarget) -> Iterator[Request]:
        """Yield the requests of a target in the order in which they get leases, if nothing changes."""
        for rank in sorted(set(RANKS.values())):
            lane = self._lanes.get((rank, target))
            if lane is not None:
                keys = lane.order(lambda key: self._charging.cost(self.requests[key]))
                yield from (self.requests[key] for key in keys)

    def aged(self, request: Request, now: float) -> bool:
        """Return True if a request has waited long enough to rank as latency_critical."""
        return now - request.waits_since >= self.age_after

    def _leased(self, request: Request, *, in_turn: bool) -> None:
        lane = request.lane
        assert lane is not None
        request.leaf = leaf = lane.take(request.key, in_turn=in_turn)
        request.account = leaf.account.hold(request.account)
        self._forget(request, lane)

    def _enter(self, request: Request, rank: int) -> None:
        lane = request.lane = self._lane(rank, request.target)
        lane.add(request.key, request.path, self._charging.weight(request.path[0]))
        self.seek(lane.leaves[request.key].account)
        if request.spec.progress:
            self.watchers[lane.target] += 1
        self._look(lane)

    def _look(self, lane: Lane) -> None:
        if lane.leaves:
            self.touched[lane] = None
            self._open.set(lane.root.number, _UNKNOWN)

    def _lane(self, rank: int, target: LaneTarget) -> Lane:
        lane = self._lanes.get((rank, target))
        if lane is None:
            lane = self._lanes[rank, target] = Lane(rank, target, self._charging.root)
            self._numbers[lane.root.number] = lane
            self._of_model.setdefault(target.model, {}).setdefault(target.engine, {})[lane] = None
        return lane

    def _forget(self, request: Request, lane: Lane) -> None:
        request.lane = None
        self._unwatch(request, lane)
        del self.requests[request.key]
        self._waiting[request.model] -= 1
        if request.spec.priority == "throughput":
            self._ageing.discard(request.key)
        self._emptied(lane)

    def _unwatch(self, request: Request, lane: Lane) -> None:
        if request.spec.progress:
            self.watchers[lane.target] -= 1
            if not self.watchers[lane.target]:
                del self.watchers[lane.target]

    def _emptied(self, lane: Lane) -> None:
        """Note that a lane changed; an empty one looks for no sequence."""
        self.touched[lane] = None
        if not lane.leaves:
            self._open.discard(lane.root.number)
            if lane.target.engine is not None:
                self._prune(lane)

    def _prune(self, lane: Lane) -> None:
        """Forget a lane of one engine's parked requests that is not used any more: engines come and go."""
        target = lane.target
        if not lane.leaves and not lane.root.leases:
            del self._lanes[lane.rank, target]
            del self._numbers[lane.root.number]
            lanes = self._of_model[target.model]
            del lanes[target.engine][lane]
            if not lanes[target.engine]:
                del lanes[target.engine]

    def _next_lane(self) -> Lane | None:
        """Return the lane whose first request comes first of those that may find a free sequence."""
        heap = self._open
        while (number := heap.first()) is not None:
            lane = self._numbers[number]
            if len(heap) == 1 or (rank := self._rank(lane)) == heap.least():
                return lane
            heap.set(number, rank)
        return None

    def _rank(self, lane: Lane) -> tuple[float, ...]:
        key = lane.first()
        label = lane.leaves[key].account
        tenant = label.parent
        assert tenant is not None
        process = tenant.parent
        assert process is not None
        user = process.parent
        assert user is not None
        times = user.time, float(user.name), process.time, float(process.name), tenant.time, label.time
        return (lane.rank, *times, key)

    def age(self, now: float) -> None:
        """Move the `throughput` requests that have waited long enough to the lanes of latency_critical."""
        while (since := self._ageing.least()) is not None and now - since >= self.age_after:
            key = self._ageing.pop()
            assert key is not None
            request = self.requests[key]
            lane = request.lane
            assert lane is not None
            lane.remove(key)
            self._unwatch(request, lane)
            self._emptied(lane)
            self._enter(request, 0)
