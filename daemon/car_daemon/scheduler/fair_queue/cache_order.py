"""Cache-aware order: of requests that fairness ranks alike, one with a resident prompt goes first."""

from collections.abc import Iterable
from itertools import islice

from car_daemon.scheduler.fair_queue.charging import Charging
from car_daemon.scheduler.fair_queue.lane import Lane
from car_daemon.scheduler.fair_queue.tree import Branch
from car_daemon.scheduler.request import Request

# A request is passed by this many others at most, so it gets its lease at most so many leases later than by fairness.
MOST_PASSED = 4
# Requests of a lane that are looked at, and those of an engine with resident prompts: an engine reports no more.
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
