"""The bounded queue: its places, shared by the users, and the requests held back while it is full."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from msgspec import Struct

from car_daemon.scheduler.fair_queue.charging import Charging
from car_daemon.scheduler.fair_queue.lane import Lane, Target
from car_daemon.scheduler.fair_queue.lazy_heap import LazyHeap
from car_daemon.scheduler.fair_queue.places import Places
from car_daemon.scheduler.request import RANKS, Request
from car_protocol.limits import QUEUE_LIMIT, QUEUE_MAX_BYTES

# Far more than well-behaved clients send before their first answers, far less than the memory of a model.
_MOST_HELD_BACK_BYTES = 256 * 1024 * 1024
_LOWEST = max(RANKS.values())
# Requests that enter before the places of their users are ordered: most leave a queue that is nearly empty at once.
_FEW = 8

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
        self._users: Counter[int] = Counter()  # their requests, by user
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

    A user may take every place that is free. In a full queue a user with no place for a model gets the newest place of
    the user that is furthest above its weighted share. Requests held back enter in the order of the users' shares, of a
    user the model with the fewest places first, then the class, then process and label by service.
    """

    def __init__(self, bounds: QueueBounds, charging: Charging) -> None:
        self.bounds = bounds
        self.held_back: dict[int, Request] = {}  # by key
        self.unprepared: dict[str, dict[int, Request]] = {}  # counted, without an engine that prepares them, by model
        self._charging = charging
        self.counted: dict[int, Request] = {}  # by key
        self.uncounted = Uncounted()
        self._unplaced: dict[int, Request] = {}  # a few of them that are not yet among the places of their users
        self._bytes = 0  # of the counted requests
        self._held_back_bytes = 0
        self._users: dict[int, Places] = {}
        self._weights = 0.0  # of these users
        self._largest: LazyHeap[float, int] = LazyHeap()  # users by their places and weight, the most first
        self._entering: LazyHeap[tuple[float, float], int] = LazyHeap()  # users with requests held back
        self._heaviest: LazyHeap[int, int] = LazyHeap()  # users by the bytes held back, the most first
        self._lanes: dict[tuple[int, str], Lane] = {}  # requests held back, by class and model
        self._lacking: dict[tuple[int, str], None] = {}  # users and models that lost their last place to a lease

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
        if self.held_back or len(self._unplaced) > _FEW:
            self._place()

    def leave(self, request: Request) -> None:
        """Forget a request, counted, held back or neither."""
        if request.key in self.counted:
            self._uncount(request)
            if unprepared := self.unprepared.get(request.model):
                unprepared.pop(request.key, None)
            user = self._users.get(request.spec.client[0])
            if user is not None and request.model in user.held.by_model and request.model not in user.by_model:
                self._lacking[user.uid, request.model] = None
        elif request.key in self.held_back:
            self._take_back(request, served=False)
        else:
            self.uncounted.remove(request)

    def hold_back(self, request: Request) -> None:
        """Keep a request outside the queue until there is room; it gives up its place if it has one."""
        self.leave(request)
        self._place()
        user = self._user(request.spec.client[0])
        self.held_back[request.key] = request
        self._held_back_bytes += request.spec.size
        self._lane(request).add(request.key, request.path, user.weight)
        user.held.add(request)
        self._rank(user)

    def excess(self) -> Iterator[Request]:
        """Yield requests to refuse until the held-back bytes are within bounds.

        Each is the newest of the heaviest process of the user that has most.
        """
        while self._held_back_bytes > _MOST_HELD_BACK_BYTES:
            uid = self._heaviest.first()
            assert uid is not None
            yield self.held_back[self._users[uid].held.heaviest()]

    def let_in(self) -> Iterator[tuple[Request, list[Request]]]:
        """Count and yield the requests held back that fit now, with the requests to hold back in their place."""
        entered = True
        while entered:
            while self.held_back and self.fits(request := self.entering()):
                self._admit(request)
                yield request, []
            entered = False
            while self._lacking and not entered:
                first = self._first_of(*self._lacking.popitem()[0])
                displaced = None if first is None else self.displaced(first)
                if first is not None and displaced:
                    entered = True
                    for each in displaced:
                        self.hold_back(each)
                    self._admit(first)
                    yield first, displaced

    def displaced(self, newcomer: Request) -> list[Request] | None:
        """Return the requests to hold back for the first of its user and model; None if it has to wait itself."""
        with self._trial([]) as leaving:
            return leaving if self._displace(newcomer, leaving, 0) else None

    def victims(self, newcomer: Request, superseded: Collection[Request]) -> list[Request] | None:
        """Return the requests to drop for a newcomer once `superseded` are gone; None if it does not fit even then.

        `block` drops nothing. `drop_oldest` drops the oldest requests of the newcomer's user, of its class or the lower
        one, unless the newcomer is to be refused by a full queue. Where that is not enough, and under `drop_newest`,
        the first request of a user and model drops what `displaced` returns, unless it is of a higher class.
        """
        rank = RANKS[newcomer.spec.priority]
        with self._trial(superseded) as leaving:
            before = len(leaving)
            user = self._users.get(newcomer.spec.client[0])
            drops_oldest = self.bounds.overflow == "drop_oldest" and newcomer.spec.queue
            while drops_oldest and user is not None and not self.fits(newcomer):
                key = user.oldest(range(rank, _LOWEST + 1))
                if key is None or _alike(self.counted[key], newcomer):
                    break
                self._remove(self.counted[key], leaving)
            fits = self.fits(newcomer) if self.bounds.overflow == "block" else self._displace(newcomer, leaving, rank)
            return leaving[before:] if fits else None

    def overload_data(self, why: str, wait: float | None, request: Request) -> dict[str, Any]:
        """Return the data of an `overloaded` error; `wait` is in seconds, None while unknown."""
        self._place()
        bounds, user = self.bounds, self._users.get(request.spec.client[0])
        data = {
            "why": why,
            "policy": bounds.overflow,
            "queued": len(self),
            "queue_limit": bounds.limit,
            "user_queued": 0 if user is None else user.count,
            "user_share": self._share(request.spec.client[0]),
        }
        return data if wait is None else {**data, "retry_after_ms": max(1, round(wait * 1000))}

    def set_weights(self) -> None:
        """Share the queue by the weights as they are now."""
        for user in self._users.values():
            user.weight = self._charging.weight(user.uid)
            self._rank(user)
        self._weights = sum(user.weight for user in self._users.values())

    def _share(self, uid: int) -> int:
        """Return a user's share of the queue in whole places, at least one."""
        weight = self._charging.weight(uid)
        total = self._weights if uid in self._users else self._weights + weight
        return max(1, int(self.bounds.limit * weight / total))

    def _displace(self, newcomer: Request, leaving: list[Request], least_rank: int) -> bool:
        """Remove requests of users above their shares until a newcomer fits; return False if it still does not."""
        uid, model = newcomer.spec.client[0], newcomer.model
        user = self._user(uid)
        first = model not in user.by_model
        while first and not self.fits(newcomer):
            key = self._over_share(user, least_rank)
            if key is None:
                key = user.newest(least_rank, spared=model)
            if key is None:
                break
            self._remove(self.counted[key], leaving)
        fits = self.fits(newcomer)
        if not user.count and not user.held.count:
            self._forget(user)
        return fits

    def _over_share(self, user: Places, least_rank: int) -> int | None:
        """Return the newest request of the user furthest above its share, if another user gains by its place."""
        uid = self._largest.first()
        if uid is None or uid == user.uid:
            return None
        largest = self._users[uid]
        over = largest.count > self.bounds.limit * largest.weight / self._weights
        return largest.newest(least_rank) if over and largest.load > (user.count + 1) / user.weight else None

    @contextmanager
    def _trial(self, superseded: Collection[Request]) -> Iterator[list[Request]]:
        """Remove requests from the queue for as long as the context lasts, and those that its body removes."""
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
            user = self._users[request.spec.client[0]]
            user.leave(request)
            self._rank(user)

    def _place(self) -> None:
        """Add the requests that entered to the places of their users."""
        for request in self._unplaced.values():
            user = self._user(request.spec.client[0])
            user.enter(request)
            self._rank(user)
        self._unplaced.clear()

    def _take_back(self, request: Request, *, served: bool) -> None:
        user = self._users[request.spec.client[0]]
        del self.held_back[request.key]
        self._held_back_bytes -= request.spec.size
        self._lane(request).remove(request.key, served=served)
        user.held.drop(request)
        self._rank(user)

    def _admit(self, request: Request) -> None:
        self._take_back(request, served=True)
        self.enter(request)

    def entering(self) -> Request:
        """Return the held-back request that enters next; there is one."""
        heap = self._entering
        while True:
            uid = heap.first()
            assert uid is not None
            user = self._users[uid]
            rank = self._entering_rank(user)
            if rank == heap.least():
                return self._next_of(user, user.held.next_model())
            heap.set(uid, rank)

    def _first_of(self, uid: int, model: str) -> Request | None:
        """Return the held-back request of a user that has no place for a model; None if it has one or needs none."""
        user = self._users.get(uid)
        waits = user is not None and model in user.held.by_model and model not in user.by_model
        return self._next_of(user, model) if waits and user is not None else None

    def _next_of(self, user: Places, model: str) -> Request:
        lanes = (self._lanes.get((rank, model)) for rank in sorted(set(RANKS.values())))
        keys = (lane.first_of(user.uid) for lane in lanes if lane is not None)
        return self.held_back[next(key for key in keys if key is not None)]

    def _entering_rank(self, user: Places) -> tuple[float, float]:
        account = self._charging.root.children.get(user.uid)
        return user.load, 0.0 if account is None else account.time

    def _lane(self, request: Request) -> Lane:
        place = RANKS[request.spec.priority], request.model
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(place[0], Target(request.model, None, None), self._charging.root)
        return lane

    def _user(self, uid: int) -> Places:
        user = self._users.get(uid)
        if user is None:
            user = self._users[uid] = Places(uid, self._charging.weight(uid))
            self._weights += user.weight
        return user

    def _rank(self, user: Places) -> None:
        """Put a user where its places and its requests held back place it; forget one that has neither."""
        uid = user.uid
        if user.count:
            self._largest.set(uid, -user.load)
        else:
            self._largest.discard(uid)
        if user.held.count:
            self._entering.set(uid, self._entering_rank(user))
            self._heaviest.set(uid, -user.held.bytes)
        else:
            self._entering.discard(uid)
            self._heaviest.discard(uid)
            if not user.count:
                self._forget(user)

    def _forget(self, user: Places) -> None:
        if self._users.pop(user.uid, None) is not None:
            self._weights = self._weights - user.weight if self._users else 0.0


def _alike(request: Request, newcomer: Request) -> bool:
    """Return whether requests are for the same prompt: none of them gives up its place to another."""
    return newcomer.spec.group is not None and request.spec.group == newcomer.spec.group
