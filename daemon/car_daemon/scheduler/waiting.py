"""Requests that wait for a lease, in the order in which they may have one."""

from collections.abc import Collection, Iterator

from car_daemon.scheduler.fairness import Fairness
from car_daemon.scheduler.request import Request, State, Target


class Waiting:
    """Prepared and parked requests of both classes.

    Class first, where `throughput` work that waited `age_after` seconds counts as latency_critical; in a class what was
    parked for a higher one, then the client that was served least, then arrival.
    """

    def __init__(self, fairness: Fairness, age_after: float) -> None:
        self._fairness = fairness
        # Mutable state: the age at which throughput work is as urgent as any, and the requests by key.
        self.age_after = age_after
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request: Request) -> bool:
        return request.key in self._requests

    def add(self, request: Request, now: float) -> None:
        """Add a request; one that ran before waits from now on."""
        if request.leased_at is not None:
            request.waits_since = now
        self._requests[request.key] = request

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._requests[request.key]

    def next(self, now: float, blocked: Collection[Target] = ()) -> Request | None:
        """Return who may have the next lease, those of `blocked` targets left out."""
        candidates = (request for request in self if request.target not in blocked)
        return min(candidates, key=lambda request: self._rank(request, now), default=None)

    def ordered(self, now: float) -> list[Request]:
        """Return all in the order in which they may have a lease, if nothing changes."""
        return sorted(self, key=lambda request: self._rank(request, now))

    def _rank(self, request: Request, now: float) -> tuple[bool, bool, float, int]:
        aged = now - request.waits_since >= self.age_after
        return (
            request.priority == "throughput" and not aged,
            request.state is not State.PARKED or request.yielded,
            self._fairness.served(request.client, now),
            request.key,
        )
