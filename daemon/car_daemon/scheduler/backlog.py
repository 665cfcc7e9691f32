"""The bounded queue: its places, shared by the accounts, and the requests held back while it is full."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from msgspec import Struct

from car_daemon.scheduler.account import Name
from car_daemon.scheduler.lane import LOOKED_AT
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.order import Charging
from car_daemon.scheduler.places import LOWEST, URGENT, Places, PlaceTree
from car_daemon.scheduler.request import RANKS, Request
from car_protocol.limits import QUEUE_LIMIT, QUEUE_MAX_BYTES

_MIB = 1 << 20
# Far more than well-behaved clients send before their first answers, far less than the memory of a model.
_MOST_HELD_BACK_BYTES = 256 * _MIB

Overflow = Literal["block", "drop_newest", "drop_oldest"]


class QueueBounds(Struct, frozen=True):
    """The most requests and bytes that may wait, over both classes, and the policy for more."""

    limit: int = QUEUE_LIMIT
    max_bytes: int = QUEUE_MAX_BYTES
    overflow: Overflow = "block"


class Uncounted:
    """The requests that are prepared before they are counted, of as many bytes as the queue, or one of each user."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}  # by key
        self._users: Counter[Name] = Counter()  # their requests, by user
        self._bytes = 0

    def fits(self, request: Request, max_bytes: int) -> bool:
        """Return True if a request may be among them."""
        alone = not self._users[request.spec.client[0]]
        return alone or self._bytes + request.spec.size <= max_bytes

    def add(self, request: Request) -> None:
        """Put a request among them, unless it is there."""
        if request.key not in self._requests:
            self._requests[request.key] = request
            self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Take a request out, if it is there."""
        if (counted := self._requests.pop(request.key, None)) is not None:
            self._count(counted, -1)

    def _count(self, request: Request, sign: Literal[1, -1]) -> None:
        uid = request.spec.client[0]
        self._bytes += sign * request.spec.size
        self._users[uid] += sign
        if not self._users[uid]:
            del self._users[uid]


class Backlog:
    """Counts accepted, preparing and waiting requests; under `block` more are held back outside.

    A user may take every place that is free, and so may its processes, their tenants and labels. In a full queue a
    request whose user has no place for its model gets the newest place of the user that is furthest above its weighted
    share; else the first of process, tenant and label without one gets the newest place of its sibling with most.
    Requests held back enter in the order of their users' places, of a user the model with the fewest places first, then
    the class, then at each level by places and the time since a request of the account entered (`PlaceTree`).
    `throughput` work that was held back for `age_after` seconds counts as latency_critical.
    """

    def __init__(self, bounds: QueueBounds, charging: Charging) -> None:
        self.bounds = bounds
        self.held_back: dict[int, Request] = {}  # by key
        self.unprepared: dict[str, dict[int, Request]] = {}  # accepted, without an engine that prepares them, by model
        self.counted: dict[int, Request] = {}  # by key
        self.uncounted = Uncounted()
        self._unplaced: dict[int, Request] = {}  # a few of them that are not yet among the places of their accounts
        self._bytes = 0  # of the counted requests
        self._held_back_bytes = 0
        self._places = PlaceTree(charging)
        self._ageing: LazyHeap[float, int] = LazyHeap()  # `throughput` requests held back, by the begin of their wait
        self._lacking: dict[tuple[Places, str], None] = {}  # accounts and models that lost their last place

    def __repr__(self) -> str:
        return (
            f"<Backlog {len(self.counted)}/{self.bounds.limit}, {self._bytes} bytes, {len(self.held_back)} held back>"
        )

    def __len__(self) -> int:
        return len(self.counted)

    def fits(self, request: Request) -> bool:
        """Return True if a request is within the bounds; an empty queue takes any size."""
        count = len(self.counted)
        return count < self.bounds.limit and (not count or self._bytes + request.spec.size <= self.bounds.max_bytes)

    def enter(self, request: Request) -> None:
        """Count a request."""
        self.counted[request.key] = self._unplaced[request.key] = request
        self.uncounted.remove(request)
        self._bytes += request.spec.size
        if self.held_back or len(self._unplaced) > LOOKED_AT:
            self._place()

    def leave(self, request: Request) -> None:
        """Forget a request, counted, held back or neither."""
        if unprepared := self.unprepared.get(request.model):
            unprepared.pop(request.key, None)
        if request.key in self.counted:
            self._uncount(request)
            if self.held_back:
                self._note_lost(request)
        elif request.key in self.held_back:
            self._take_back(request)
        else:
            self.uncounted.remove(request)

    def hold_back(self, request: Request) -> None:
        """Keep a request outside the queue until there is room; it gives up its place if it has one."""
        gives_up = request.key in self.counted
        self.leave(request)
        self._place()
        rank = RANKS[request.spec.priority]
        if rank:
            self._ageing.set(request.key, request.waits_since)
        self.held_back[request.key] = request
        self._held_back_bytes += request.spec.size
        self._places.hold_back(request, rank)
        if gives_up:
            self._note_lost(request)

    def excess(self) -> Iterator[Request]:
        """Yield requests to refuse until the held-back bytes are within bounds.

        Each is the newest of the user that has most, of its heaviest process, of its heaviest tenant and label.
        """
        while self._held_back_bytes > _MOST_HELD_BACK_BYTES:
            yield self.held_back[self._places.heaviest()]

    def let_in(self, now: float, age_after: float) -> Iterator[tuple[Request, list[Request]]]:
        """Count and yield the requests held back that fit now, with the requests to hold back in their place."""
        while (since := self._ageing.least()) is not None and now - since >= age_after:
            request = self.held_back[self._aged()]
            self._places.take_back(request)
            self._places.hold_back(request, URGENT)
        entered, settled = True, set[tuple[Places, str]]()
        while entered:
            while self._may_enter() and self.fits(request := self.entering()):
                self._admit(request, self._places.user(request))
                yield request, []
            entered = False
            while self._lacking and not entered:
                account, model = lost = self._lacking.popitem()[0]
                if lost in settled or not account.holds(model) or account.places_of(model):
                    continue
                settled.add(lost)  # once an event: whoever takes a place sets others back, which may lack one then
                first = self.held_back[account.enters(model)]
                if displaced := self.displaced(first):
                    entered = True
                    for each in displaced:
                        self.hold_back(each)
                    self._admit(first, account)
                    yield first, displaced

    def entering(self) -> Request:
        """Return the held-back request that enters next; there is one."""
        return self.held_back[self._places.entering()]

    def displaced(self, newcomer: Request) -> list[Request] | None:
        """Return the requests to hold back for the first of its account and model; None if it has to wait itself."""
        with self._trial([]) as leaving:
            return leaving if self._displace(newcomer, leaving) else None

    def victims(self, newcomer: Request, superseded: Collection[Request]) -> list[Request] | None:
        """Return the requests to drop for a newcomer once `superseded` are gone; None if it does not fit even then.

        `block` drops nothing, and neither does a newcomer that is to be refused by a full queue. `drop_oldest` drops
        the oldest requests of the newcomer's label, of its class or the lower one. If that is not enough, and under
        `drop_newest`, the first request of an account and model drops what `displaced` returns, unless it is of a
        higher class.
        """
        spec = newcomer.spec
        with self._trial(superseded) as leaving:
            before = len(leaving)
            drops = spec.queue and self.bounds.overflow != "block"
            while drops and self.bounds.overflow == "drop_oldest" and not self.fits(newcomer):
                key = self._places.oldest(newcomer, range(RANKS[spec.priority], LOWEST + 1))
                if key is None or _alike(self.counted[key], newcomer):
                    break
                self._remove(self.counted[key], leaving)
            fits = self._displace(newcomer, leaving) if drops else self.fits(newcomer)
            return leaving[before:] if fits else None

    def overload_data(self, why: str, wait_ms: int | None, request: Request) -> dict[str, Any]:
        """Return the data of an `overloaded` error; `wait_ms` is None while unknown."""
        self._place()
        bounds, uid = self.bounds, request.spec.client[0]
        data = {
            "why": why,
            "policy": bounds.overflow,
            "queued": len(self),
            "queue_limit": bounds.limit,
            "user_queued": self._places.count(uid),
            "user_share": self._places.share(uid, bounds.limit),
        }
        return data if wait_ms is None else {**data, "retry_after_ms": max(1, wait_ms)}

    def set_weights(self) -> None:
        """Share the queue by the weights as they are now."""
        self._places.set_weights()

    def _displace(self, newcomer: Request, leaving: list[Request]) -> bool:
        """Remove requests of accounts with more places until a newcomer fits; return False if it still does not.

        Under `block` a user gets the place of another one whatever the classes are, because nothing is lost.
        """
        lacking = None if self.fits(newcomer) else self._places.lacking(newcomer)
        if lacking is None:
            return self.fits(newcomer)
        blocks = self.bounds.overflow == "block" and lacking.is_user
        least_rank = URGENT if blocks else RANKS[newcomer.spec.priority]
        while not self.fits(newcomer):
            key = self._places.giver(newcomer, lacking, self.bounds.limit, least_rank)
            if key is None:
                return False
            self._remove(self.counted[key], leaving)
        return True

    @contextmanager
    def _trial(self, superseded: Collection[Request]) -> Iterator[list[Request]]:
        """Remove requests from the queue for as long as the context lasts, also the requests that its body removes."""
        self._place()
        leaving: list[Request] = []
        for request in superseded:
            if request.key in self.counted:
                self._remove(request, leaving)
        try:
            yield leaving
        finally:
            for request in leaving:
                self.enter(request)

    def _remove(self, request: Request, leaving: list[Request]) -> None:
        leaving.append(request)
        self._uncount(request)

    def _uncount(self, request: Request) -> None:
        del self.counted[request.key]
        self._bytes -= request.spec.size
        if self._unplaced.pop(request.key, None) is None:
            self._places.leave(request)

    def _place(self) -> None:
        """Add the requests that entered to the places of their accounts."""
        for request in self._unplaced.values():
            self._places.enter(request)
        self._unplaced.clear()

    def _may_enter(self) -> bool:
        """Return whether a request is held back and a place is free, before it is worth finding whose turn it is."""
        return bool(self.held_back) and len(self.counted) < self.bounds.limit

    def _note_lost(self, request: Request) -> None:
        for account in self._places.lost(request):
            self._lacking[account, request.model] = None

    def _aged(self) -> int:
        key = self._ageing.pop()
        assert key is not None
        return key

    def _take_back(self, request: Request, entering: Places | None = None) -> None:
        del self.held_back[request.key]
        self._held_back_bytes -= request.spec.size
        self._ageing.discard(request.key)
        self._places.take_back(request, entering)

    def _admit(self, request: Request, entering: Places) -> None:
        self._take_back(request, entering)
        self.enter(request)


def _alike(request: Request, newcomer: Request) -> bool:
    """Return whether requests are for the same prompt: neither gives up its place to the other."""
    return newcomer.spec.group is not None and request.spec.group == newcomer.spec.group
