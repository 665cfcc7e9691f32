"""Bounds on what clients of the door take together: connections without a key, and the bytes of bodies."""

from collections.abc import Callable

from car_http.problems import RETRY_AFTER_MS, Problem

# Two dozen of the longest bodies; each takes several times its size while it is decoded and sent on.
MOST_BODY_BYTES = 192 * 1024 * 1024


class Strangers:
    """Connections to ports that no admitted request came by; beyond `limit` the oldest of them gives way.

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
        """Add a new connection; the oldest one is refused where there are too many."""
        self._refusals[connection] = refuse
        if len(self._refusals) > self._limit:
            oldest = next(iter(self._refusals))
            self._refusals.pop(oldest)()

    def discard(self, connection: object) -> None:
        """Forget a connection that ended, or by which a request was admitted."""
        self._refusals.pop(connection, None)


class BodyMemory:
    """The bytes of all bodies that are being received or answered."""

    def __init__(self, limit: int = MOST_BODY_BYTES) -> None:
        self._limit = limit
        self._taken = 0

    def __repr__(self) -> str:
        return f"<BodyMemory {self._taken}/{self._limit}>"

    def take(self, size: int) -> None:
        """Count bytes of a body; raises Problem where there are too many."""
        if self._taken + size > self._limit:
            message = f"the bodies of all requests would take {self._taken + size} bytes, the limit is {self._limit}: "
            raise Problem(
                503,
                "too_many_bytes",
                message + "send fewer long requests at once",
                headers={"connection": "close"},
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._taken += size

    def give_back(self, size: int) -> None:
        """Count bytes no more."""
        self._taken -= size
