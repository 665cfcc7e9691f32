"""All connections: who may connect, how many, and who hears of changes."""

import asyncio
import os
import socket
from collections.abc import Iterator
from itertools import count

import structlog

from car_daemon.connection import Calls, Connection
from car_daemon.hangup import HangupWatcher
from car_protocol.capacity import Capacity
from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from car_protocol.methods import CAPACITY_CHANGED

log = structlog.get_logger()


class Server:
    """Accepts peers on a listening socket; `allow_uids` may connect besides root and the daemon's own user."""

    def __init__(self, limits: Limits, allow_uids: list[int]) -> None:
        self._limits = limits
        self._allowed = {0, os.getuid(), *allow_uids}
        self._numbers = count(1)
        self._hangups = HangupWatcher()
        # Mutable state: the open connections by number, the listener, and the waiters for the last one to close.
        self._connections: dict[int, Connection] = {}
        self._listener: asyncio.Server | None = None
        self._none_left = asyncio.Event()

    def __iter__(self) -> Iterator[Connection]:
        """Yield the open connections."""
        return iter(list(self._connections.values()))

    async def start(self, listener: socket.socket, calls: Calls) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._hangups.start()
        self._listener = await loop.create_unix_server(
            lambda: Connection(next(self._numbers), calls, self, self._hangups, self._limits),
            sock=listener,
            backlog=socket.SOMAXCONN,
        )

    def admit(self, connection: Connection) -> RpcError | None:
        """Take a new connection, or say why not."""
        uid = connection.peer.uid
        if uid not in self._allowed:
            log.warning("connection.refused", uid=uid, why="not permitted")
            return RpcError("not_permitted")
        same_user = sum(other.peer.uid == uid for other in self._connections.values())
        if same_user >= self._limits.max_connections_per_uid:
            return RpcError("limit", limit="max_connections_per_uid", value=self._limits.max_connections_per_uid)
        if len(self._connections) >= self._limits.max_connections:
            return RpcError("limit", limit="max_connections", value=self._limits.max_connections)
        self._connections[connection.number] = connection
        return None

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection.number, None)
        if not self._connections:
            self._none_left.set()

    def capacity_changed(self, capacity: Capacity) -> None:
        """Tell every connection that subscribed to this model."""
        for connection in self:
            if capacity.model in connection.subscriptions:
                connection.notify(CAPACITY_CHANGED, capacity)

    async def close(self, patience: float) -> None:
        """Stop accepting, write out what waits, and close; after `patience` seconds what is left is dropped."""
        if self._listener is not None:
            self._listener.close()
        self._none_left.clear()
        for connection in self:
            connection.close()
        if self._connections:
            try:
                await asyncio.wait_for(self._none_left.wait(), patience)
            except TimeoutError:
                for connection in self:
                    connection.abort()
        self._hangups.close()
