"""Prepared requests that wait for a lease, in the order in which they may have one."""

from collections.abc import Iterator

from car_daemon.scheduler.request import Request
from car_protocol.infer import Priority

_CLASSES: tuple[Priority, ...] = ("latency_critical", "throughput")


class Waiting:
    """Two classes, the first before the second; within a class by arrival."""

    def __init__(self) -> None:
        # Mutable state: the waiting requests of each class by key, in order of arrival.
        self._classes: dict[Priority, dict[int, Request]] = {name: {} for name in _CLASSES}

    def __len__(self) -> int:
        return sum(map(len, self._classes.values()))

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests in the order in which they may have a lease."""
        for requests in self._classes.values():
            yield from requests.values()

    def __contains__(self, request: Request) -> bool:
        return request.key in self._classes[request.priority]

    def count(self, priority: Priority) -> int:
        """Return how many requests of one class wait."""
        return len(self._classes[priority])

    def add(self, request: Request) -> None:
        """Add a request by its arrival: one that comes back goes before those that came after it."""
        requests = self._classes[request.priority]
        came_back = bool(requests) and next(reversed(requests)) > request.key
        requests[request.key] = request
        if came_back:
            self._classes[request.priority] = dict(sorted(requests.items()))

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._classes[request.priority][request.key]
