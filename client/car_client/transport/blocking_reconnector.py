"""The blocking client's connection: made at the first call, and again at the next call after a loss."""

from collections.abc import Callable
from pathlib import Path

from car_client.paths import connect
from car_client.transport.blocking_connection import BlockingConnection

Pause = Callable[[float], None]


class BlockingReconnector:
    """Makes connections to the first of `paths` that answers; `pause` waits between two attempts of a call."""

    def __init__(self, paths: list[Path], pause: Pause) -> None:
        self._paths = paths
        self.pause = pause
        self._connection: BlockingConnection | None = None  # None before the first call

    @property
    def connection(self) -> BlockingConnection | None:
        """The open connection, once what has come on it is read; None if there is none."""
        if self._connection is not None and self._connection.open:
            self._connection.drain()
        return self._connection if self._connection is not None and self._connection.open else None

    def ready(self, timeout_s: float) -> BlockingConnection:
        """Return the open connection, or a new one that is tried for `timeout_s`; raises ConnectTimeout."""
        if (connection := self.connection) is None:
            self.close()
            self._connection = connection = BlockingConnection(connect(self._paths, timeout_s, self.pause))
        return connection

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
