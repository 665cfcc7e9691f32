"""The process at the other end of a connection, and the group of users that a socket file admits."""

import contextlib
import os
import pwd
import socket
import stat
from pathlib import Path

from msgspec import Struct

from car_protocol.peer_credentials import peer_credentials


class Peer(Struct, frozen=True):
    """A connected process."""

    uid: int
    pid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that connected; raises OSError."""
    return Peer(*peer_credentials(connection))


class SocketGroup:
    """The users in the group that may write to the socket file `path`; empty where its mode admits no group."""

    def __init__(self, path: Path) -> None:
        self._group: int | None = None  # None where there is none, or no file
        with contextlib.suppress(OSError):
            facts = path.stat()
            self._group = facts.st_gid if facts.st_mode & stat.S_IWGRP else None

    def __contains__(self, uid: object) -> bool:
        """Return whether a user is a member, by the user database of this moment."""
        if self._group is None or not isinstance(uid, int):
            return False
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            return False
        return self._group in os.getgrouplist(user.pw_name, user.pw_gid)
