"""Admission of peers: the users that may connect, and the number of connections and users."""

import os
from collections import Counter
from collections.abc import Container

from car_daemon.host.event_log import log
from car_daemon.sockets.peer import Peer
from car_protocol.errors import RpcError
from car_protocol.limits import Limits


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
        """Return why a peer may not connect now; None where it may."""
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
