"""Accepted connections: the process at the other end, the group that a socket file admits, and their acceptance."""

import asyncio
import contextlib
import errno
import os
import pwd
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from car_base.host.event_log import log
from car_base.host.timers import Timer
from car_protocol.sockets import peer_credentials


class Peer(Struct, frozen=True):
    """A connected process."""

    uid: int
    pid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that connected; raises OSError."""
    return Peer(*peer_credentials(connection))


class SocketGroup:
    """The users in the group that may write to the socket file `path`; empty if its mode admits no group."""

    def __init__(self, path: Path) -> None:
        self._group: int | None = None  # None if there is none, or no file
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


# Connections accepted in one turn of the event loop, so that other work is not kept waiting.
_MOST_PER_TURN = 64


class Acceptor:
    """Passes accepted sockets, non-blocking, to `accepted`; if descriptors run out it pauses for `pause_s` seconds.

    New connections wait in the kernel's queue meanwhile; the event loops' own servers would drop them.
    """

    def __init__(self, accepted: Callable[[socket.socket], None], *, pause_s: float = 0.2) -> None:
        self._accepted = accepted
        self._pause_s = pause_s
        self._resume = Timer(self._listen)
        self._listener: socket.socket | None = None
        self._short = False  # whether the last attempt found no descriptor

    def start(self, listener: socket.socket) -> None:
        """Accept from this socket from now on, in place of the one before."""
        self.stop()
        self._listener = listener
        self._listen()

    def stop(self) -> None:
        """Stop accepting."""
        self._resume.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener = None

    def _listen(self) -> None:
        assert self._listener is not None
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_MOST_PER_TURN):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._short:
                    log.warning("accept.paused", why=errno.errorcode.get(error.errno or 0, "unknown"))
                self._short = True
                asyncio.get_running_loop().remove_reader(listener)
                self._resume.arm(self._pause_s)
                return
            self._short = False
            connection.setblocking(False)
            self._accepted(connection)
            if self._listener is not listener:
                # The callback stopped accepting, or replaced the listener.
                return
