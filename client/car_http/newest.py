"""`supersede` over several HTTP requests: the newest request of a key cancels the older one.

The daemon does so within one connection, and each HTTP request has a connection of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from car_client.errors import from_object
from car_http.daemon.connection import DaemonConnection
from car_protocol.errors import RpcError


class Newest:
    """The running call of each key; keys of one owner never end requests of another."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], DaemonConnection] = {}

    @contextmanager
    def running(self, owner: str, key: str | None, connection: DaemonConnection) -> Iterator[None]:
        """Cancel the older call of the key, and run this one for the length of a block."""
        if key is None:
            yield
            return
        place = (owner, key)
        if older := self._running.get(place):
            older.end(from_object(RpcError("cancelled", superseded=True).as_object()))
        self._running[place] = connection
        try:
            yield
        finally:
            if self._running.get(place) is connection:
                del self._running[place]
