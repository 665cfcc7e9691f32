"""Who is at the other end of a Unix socket."""

import socket
import struct
import sys

from msgspec import Struct

_UCRED = struct.Struct("3i")
# macOS: SOL_LOCAL, LOCAL_PEERCRED with a struct xucred (version, uid, ...) and LOCAL_PEERPID.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2
_XUCRED = struct.Struct("2I72x")
_PID = struct.Struct("i")


class Peer(Struct, frozen=True):
    """A connected process."""

    uid: int
    pid: int


# Sees what everybody may see.
ANYBODY = Peer(uid=-1, pid=0)


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected, as the kernel noted it."""
    if sys.platform == "linux":
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return Peer(uid, pid)
    _, uid = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
    (pid,) = _PID.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PID.size))
    return Peer(uid, pid)
