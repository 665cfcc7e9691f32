"""All connections: who may connect, how many, and who hears of changes."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Container, Iterator
from itertools import count

import structlog

from car_daemon.accept import Acceptor
from car_daemon.connection import Calls, Connection, Surroundings
from car_daemon.hangup import HangupWatcher
from car_daemon.held import HeldBytes
from car_daemon.peer import Peer, peer_of
from car_daemon.turns import Turns
from car_protocol.capacity import Capacity
from car_protocol.envelope import Failure, encode_message
from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from car_protocol.methods import CAPACITY_CHANGED

log = structlog.get_logger()
# What a refused client has sent already is taken in before its socket closes: else it reads a reset, not the error.
_DRAIN_BYTES = 64 * 1024


def _nothing() -> None:
    """Hear of nothing."""


class Server:
    """Accepts peers on a listening socket; `allow_uids` and `members` may connect besides root and the daemon's own
    user. `on_change` hears of every peer that comes or goes.
    """

    def __init__(
        self,
        limits: Limits,
        allow_uids: list[int],
        calls: Calls,
        *,
        members: Container[int] = (),
        on_change: Callable[[], None] = _nothing,
    ) -> None:
        self._limits = limits
        self._members = members
        self._on_change = on_change
        self._numbers = count(1)
        self._hangups = HangupWatcher()
        self._surroundings = Surroundings(calls, limits, Turns(), self._hangups, HeldBytes(), self._lost)
        self._acceptor = Acceptor(self._take)
        # Mutable state: who may connect, the open connections by number, how many each user has, those that are being
        # set up, users whose refusal was logged, and the waiter for the last connection to close.
        self._allowed: set[int] = set()
        self.allow(allow_uids)
        self._connections: dict[int, Connection] = {}
        self._per_user: Counter[int] = Counter()
        self._starting: set[asyncio.Task[None]] = set()
        self._foreign: set[int] = set()
        self._none_left = asyncio.Event()

    def __len__(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        """Yield the open connections."""
        return iter(list(self._connections.values()))

    def allow(self, uids: list[int]) -> None:
        """Let these users connect from now on, besides root and our own; open connections stay."""
        self._allowed = {0, os.getuid(), *uids}

    def start(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        self._hangups.start()
        self.listen(listener)

    def listen(self, listener: socket.socket) -> None:
        """Accept from this socket in place of the one before; open connections stay."""
        self._acceptor.start(listener)

    def stop_listening(self) -> None:
        """Accept no more; open connections stay."""
        self._acceptor.stop()

    def capacity_changed(self, capacity: Capacity) -> None:
        """Tell every connection that subscribed to this model."""
        for connection in self:
            if capacity.model in connection.subscriptions:
                connection.notify(CAPACITY_CHANGED, capacity)

    async def close(self, patience: float) -> None:
        """Stop accepting, write out what waits, and close; after `patience` seconds what is left is dropped."""
        self._acceptor.stop()
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

    def _take(self, accepted: socket.socket) -> None:
        """Let a peer in, or turn it away before a byte of it is looked at."""
        try:
            peer = peer_of(accepted)
        except OSError:
            # It is gone already.
            accepted.close()
            return
        refusal = self._refusal(peer)
        if refusal is None:
            self._let_in(accepted, peer)
        else:
            _turn_away(accepted, refusal)

    def _refusal(self, peer: Peer) -> RpcError | None:
        if peer.uid not in self._allowed and peer.uid not in self._members:
            self._log_foreign(peer.uid)
            return RpcError("not_permitted")
        bounds = self._limits
        if self._per_user[peer.uid] >= bounds.max_connections_per_uid:
            return RpcError("limit", limit="max_connections_per_uid", value=bounds.max_connections_per_uid)
        if len(self._connections) >= bounds.max_connections:
            return RpcError("limit", limit="max_connections", value=bounds.max_connections)
        return None

    def _log_foreign(self, uid: int) -> None:
        """Log a user that is not allowed, once: it may try for ever."""
        if uid not in self._foreign:
            self._foreign.add(uid)
            log.warning("connection.refused", uid=uid, why="not permitted")

    def _let_in(self, accepted: socket.socket, peer: Peer) -> None:
        connection = Connection(next(self._numbers), peer, self._surroundings)
        self._connections[connection.number] = connection
        self._per_user[peer.uid] += 1
        self._on_change()
        task = asyncio.get_running_loop().create_task(self._connect(accepted, connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _connect(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)
        except BaseException as error:
            accepted.close()
            self._lost(connection)
            if not isinstance(error, OSError):
                raise

    def _lost(self, connection: Connection) -> None:
        """Forget a connection."""
        if self._connections.pop(connection.number, None) is not None:
            self._per_user[connection.peer.uid] -= 1
            self._on_change()
        if not self._connections:
            self._none_left.set()


def _turn_away(accepted: socket.socket, refusal: RpcError) -> None:
    """Close a connection; one that is permitted but too many is told why."""
    with accepted:
        if refusal.reason == "not_permitted":
            return
        try:
            accepted.send(encode_message(Failure(None, refusal.as_object())))
            accepted.recv(_DRAIN_BYTES)
        except OSError:
            # It is gone, or has sent nothing yet.
            return
