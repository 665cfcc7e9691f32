"""User and process at the other end of a Unix socket, as the kernel recorded them."""

import socket
import struct
import sys

_UCRED = struct.Struct("3i")
# macOS: SOL_LOCAL, LOCAL_PEERCRED with a struct xucred (version, uid, ...) and LOCAL_PEERPID.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2
_XUCRED = struct.Struct("2I72x")
_PID = struct.Struct("i")


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the peer's user id and process id; raises OSError."""
    if sys.platform == "linux":
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    else:
        _, uid = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
        (pid,) = _PID.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PID.size))
    return uid, pid
