"""The bounded queue: which requests count against it, and who is held back or dropped when it is full."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal

from msgspec import Struct

from car_daemon.scheduler.request import RANKS, Request
from car_protocol.limits import QUEUE_LIMIT, QUEUE_MAX_BYTES

# Clients that wait for their answers do not come near this together; a machine that runs models has far more.
_MOST_HELD_BYTES = 256 * 1024 * 1024

Overflow = Literal["block", "drop_newest", "drop_oldest"]


class QueueBounds(Struct, frozen=True):
    """The most requests and bytes that may wait, over both classes, and what happens to more."""

    limit: int = QUEUE_LIMIT
    max_bytes: int = QUEUE_MAX_BYTES
    overflow: Overflow = "block"


class Backlog:
    """Counts accepted, preparing and waiting requests; under `block` more are held outside, in order."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.bounds = bounds
        # Mutable state: the requests that count, and their bytes; those held back in order of arrival, and theirs by
        # process.
        self._counted: dict[int, Request] = {}
        self._bytes = 0
        self._held: dict[int, Request] = {}
        self._held_bytes: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._counted)

    def __contains__(self, request: Request) -> bool:
        return request.key in self._counted

    @property
    def held(self) -> int:
        """Requests held back outside the queue."""
        return len(self._held)

    def fits(self, request: Request, leaving: Collection[Request] = ()) -> bool:
        """Tell whether one more request is within the bounds once others left; an empty queue takes any."""
        gone = [each for each in leaving if each in self]
        count, size = len(self) - len(gone), self._bytes - sum(each.size for each in gone)
        return count < self.bounds.limit and (not count or size + request.size <= self.bounds.max_bytes)

    def enter(self, request: Request) -> None:
        """Count a request."""
        self._counted[request.key] = request
        self._bytes += request.size

    def leave(self, request: Request) -> None:
        """Stop counting a request, or holding it."""
        if self._counted.pop(request.key, None) is not None:
            self._bytes -= request.size
        elif self._held.pop(request.key, None) is not None:
            self._count_held(request, -request.size)

    def hold(self, request: Request) -> None:
        """Hold a request back until there is room."""
        self._held[request.key] = request
        self._count_held(request, request.size)

    def excess(self) -> Iterator[Request]:
        """Yield whom to refuse until what is held back is within bounds: the last one of the process that has most."""
        while self._held_bytes.total() > _MOST_HELD_BYTES:
            [(process, _)] = self._held_bytes.most_common(1)
            yield next(request for request in reversed(self._held.values()) if request.process == process)

    def _count_held(self, request: Request, size: int) -> None:
        self._held_bytes[request.process] += size
        if not self._held_bytes[request.process]:
            del self._held_bytes[request.process]

    def next_held(self) -> Request | None:
        """Count and return the first request held back, if there is room for it now."""
        first = next(iter(self._held.values()), None)
        if first is None or not self.fits(first):
            return None
        self.leave(first)
        self.enter(first)
        return first

    def overload_facts(self, why: str, wait: float | None) -> dict[str, Any]:
        """Return the data of an `overloaded` error; `wait` is in seconds, None where unknown."""
        bounds = self.bounds
        facts = {"why": why, "policy": bounds.overflow, "queued": len(self), "queue_limit": bounds.limit}
        return facts if wait is None else {**facts, "retry_after_ms": max(1, round(wait * 1000))}

    def victims(self, newcomer: Request, leaving: Collection[Request]) -> list[Request] | None:
        """Return who is dropped for a newcomer besides those that leave; None where it does not fit even then.

        They are the oldest requests of its class or the lower one, of any client, where the policy drops anybody.
        """
        rank = RANKS[newcomer.priority]
        droppable = [each for each in self._counted.values() if RANKS[each.priority] >= rank and each not in leaving]
        oldest = iter(sorted(droppable, key=lambda request: request.key))
        victims: list[Request] = []
        while not self.fits(newcomer, [*leaving, *victims]):
            victim = next(oldest, None) if self.bounds.overflow == "drop_oldest" else None
            if victim is None:
                return None
            victims.append(victim)
        return victims
