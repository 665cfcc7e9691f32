"""Bounds on what clients of the door take together: connections without a key, and the bytes of bodies."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from car_http.problems import RETRY_AFTER_MS, Problem

# Two dozen of the longest bodies. Each takes up to three times its size until it is answered: in its call, in the frame
# that is sent, and in what its response repeats. As values, up to 15 times its size, one body at a time is in memory.
MOST_BODY_BYTES = 192 * 1024 * 1024


class Strangers:
    """Connections to ports that no admitted request came by; beyond `limit` the oldest gives way.

    Any program of the machine may connect to a port, and would otherwise take every descriptor of the door.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._refusals: dict[object, Callable[[], None]] = {}  # by connection, the oldest first

    def __repr__(self) -> str:
        return f"<Strangers {len(self._refusals)}/{self._limit}>"

    def __contains__(self, connection: object) -> bool:
        """Return whether no admitted request came by a connection."""
        return connection in self._refusals

    def add(self, connection: object, refuse: Callable[[], None]) -> None:
        """Add a new connection; the oldest is refused if there are too many."""
        self._refusals[connection] = refuse
        if len(self._refusals) > self._limit:
            oldest = next(iter(self._refusals))
            self._refusals.pop(oldest)()

    def discard(self, connection: object) -> None:
        """Forget a connection that ended, or by which a request was admitted."""
        self._refusals.pop(connection, None)


class Body(Protocol):
    """A request whose body counts; `owner` is the name of its key."""

    @property
    def owner(self) -> str:
        """The name under which its bytes count."""

    def give_way(self, problem: Problem) -> None:
        """End the request with an error."""


class BodyMemory:
    """The bytes of all bodies that are being received or answered, by owner."""

    def __init__(self, limit: int = MOST_BODY_BYTES) -> None:
        self._limit = limit
        self._sizes: dict[Body, int] = {}  # the oldest first
        self._taken = Counter[str]()  # by owner

    def __repr__(self) -> str:
        return f"<BodyMemory {self._taken.total()}/{self._limit} of {len(self._sizes)}>"

    def take(self, body: Body, size: int) -> None:
        """Count bytes of a body. While there are too many, the newest body of the owner with most gives way.

        Raises Problem if that is this body.
        """
        self._sizes[body] = self._sizes.get(body, 0) + size
        self._taken[body.owner] += size
        while self._taken.total() > self._limit:
            problem = self._too_many()
            newest = self._newest_of_most()
            self.give_back(newest)
            if newest is body:
                raise problem
            newest.give_way(problem)

    def give_back(self, body: Body) -> None:
        """Count a body no more."""
        self._taken[body.owner] -= self._sizes.pop(body, 0)

    def _newest_of_most(self) -> Body:
        most = max(self._taken, key=self._taken.__getitem__)
        return next(body for body in reversed(self._sizes) if body.owner == most)

    def _too_many(self) -> Problem:
        message = f"the bodies of all requests would take {self._taken.total()} bytes, the limit is {self._limit}: "
        return Problem(
            503,
            "too_many_bytes",
            message + "send fewer long requests at once",
            headers={"connection": "close"},
            retry_after_ms=RETRY_AFTER_MS,
        )
