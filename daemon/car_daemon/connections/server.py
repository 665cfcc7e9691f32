"""All connections: admission of peers by user and number, and notifications to subscribers."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Container, Iterator
from itertools import count

from car_base.host.event_log import log
from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection, ConnectionContext, HangupWatcher
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.connections.memory_share import ClientMemoryLimit
from car_daemon.sockets.peer import Acceptor, Peer, peer_of
from car_protocol.capacity import Capacity
from car_protocol.envelope import Call, Failure, encode_message
from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from car_protocol.methods import CAPACITY_CHANGED

# Bytes that a refused client has sent are read before its socket closes: else it reads a reset, not the error.
_DRAIN_BYTES = 64 * 1024


class PeerAdmission:
    """Admits root, the daemon's own user, the allowed users and `members`; counts the connections of each user."""

    def __init__(self, limits: Limits, allow_uids: list[int], members: Container[int]) -> None:
        self._limits = limits
        self._members = members
        self._owners = {0, os.getuid()}
        self._allowed: set[int] = set()  # user ids
        self.allow(allow_uids)
        self._per_user: Counter[int] = Counter()  # connections by user id
        self._logged: set[int] = set()  # user ids whose refusal was logged

    def __repr__(self) -> str:
        return f"<PeerAdmission connections={self._per_user.total()} users={len(self._per_user)}>"

    def allow(self, uids: list[int]) -> None:
        """Let these users connect from now on, besides root and the daemon's own; open connections stay."""
        self._allowed = {*self._owners, *uids}

    def refusal(self, peer: Peer) -> RpcError | None:
        """Return why a peer may not connect now; None if it may."""
        if peer.uid not in self._allowed and peer.uid not in self._members:
            if peer.uid not in self._logged:  # once, because a user may try for ever
                self._logged.add(peer.uid)
                log.warning("connection.refused", uid=peer.uid, why="not permitted")
            return RpcError("not_permitted")
        bounds = self._limits
        if self._per_user[peer.uid] >= bounds.max_connections_per_uid:
            return RpcError("limit", limit="max_connections_per_uid", value=bounds.max_connections_per_uid)
        if self._per_user.total() >= bounds.max_connections:
            return RpcError("limit", limit="max_connections", value=bounds.max_connections)
        users = len({*self._per_user, peer.uid} - self._owners)
        if users > bounds.max_users:
            return RpcError("limit", limit="max_users", value=bounds.max_users, users=users)
        return None

    def joined(self, peer: Peer) -> None:
        """Count a connection."""
        self._per_user[peer.uid] += 1

    def left(self, peer: Peer) -> None:
        """Count a connection no longer."""
        self._per_user[peer.uid] -= 1
        self._per_user += Counter()  # forgets users without connections


class Server:
    """Accepts peers on a listening socket: root, the daemon's own user, `allow_uids` and `members`.

    `on_change` is called when a connection begins or ends.
    """

    def __init__(
        self,
        limits: Limits,
        allow_uids: list[int],
        call: Callable[[Connection, Call, RpcCall], None],
        refused: Callable[[Connection, Call], None],
        fair_queue: FairQueue,
        *,
        members: Container[int] = (),
        read_peer: Callable[[socket.socket], Peer] = peer_of,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.admission = PeerAdmission(limits, allow_uids, members)
        self._read_peer = read_peer
        self._on_change = on_change
        self._numbers = count(1)
        self._hangups = HangupWatcher()
        self._context = ConnectionContext(
            call, refused, limits, fair_queue, self._hangups, ClientMemoryLimit(), self._forget
        )
        self._acceptor = Acceptor(self._admit)
        self._connections: dict[int, Connection] = {}  # by number
        self._starting: set[asyncio.Task[None]] = set()
        self._none_left = asyncio.Event()  # set when the last connection ends

    def __repr__(self) -> str:
        context = self._context
        return f"<Server connections={len(self)} {context.fair_queue!r} {context.memory_limit!r}>"

    def __len__(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        """Yield the open connections."""
        return iter(list(self._connections.values()))

    def start(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        self._hangups.start()
        self.listen(listener)

    def listen(self, listener: socket.socket) -> None:
        """Accept from this socket in place of the previous one; open connections stay."""
        self._acceptor.start(listener)

    def stop_listening(self) -> None:
        """Stop accepting; open connections stay."""
        self._acceptor.stop()

    def capacity_changed(self, capacity: Capacity, *, default: bool) -> None:
        """Notify every connection that subscribed to this model, by its name or as the default one."""
        names = {capacity.model, None} if default else {capacity.model}
        for connection in self:
            if not names.isdisjoint(connection.subscriptions.models):
                connection.notify(CAPACITY_CHANGED, capacity)

    async def close(self, patience: float) -> None:
        """Stop accepting, write the remaining output and close; after `patience` seconds the rest is dropped."""
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

    def _admit(self, accepted: socket.socket) -> None:
        """Connect a peer, or refuse it before a byte of it is read."""
        try:
            peer = self._read_peer(accepted)
        except OSError:
            # The peer has disconnected.
            accepted.close()
            return
        refusal = self.admission.refusal(peer)
        if refusal is not None:
            _refuse(accepted, refusal)
            return
        connection = Connection(next(self._numbers), peer, self._context)
        self._connections[connection.number] = connection
        self.admission.joined(peer)
        self._on_change()
        task = asyncio.get_running_loop().create_task(self._start(accepted, connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)
        except BaseException as error:
            accepted.close()
            self._forget(connection)
            if not isinstance(error, OSError):
                raise

    def _forget(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self.admission.left(connection.peer)
            self._on_change()
        if not self._connections:
            self._none_left.set()


def _refuse(accepted: socket.socket, refusal: RpcError) -> None:
    """Close a connection; a permitted user is sent the reason."""
    with accepted:
        if refusal.reason == "not_permitted":
            return
        try:
            accepted.send(encode_message(Failure(None, refusal.as_object())))
            accepted.recv(_DRAIN_BYTES)
        except OSError:
            # The peer has disconnected, or has sent nothing yet.
            return
