"""A listening socket that the service manager (systemd, launchd) made and keeps: served here, never removed."""

import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from car_daemon.sockets.own_socket import BadAddress
from car_protocol.sockets import systemd_descriptors

# The name in the units and in the property list.
SOCKET_NAME = "rpc"
# launchd's answers to a process that it did not start, and to one whose property list names no such socket.
_NOT_ACTIVATED = (errno.ENOENT, errno.ESRCH)


class ActivatedSocket:
    """A listening socket of the service manager; clients queue on it while no daemon runs."""

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.listener = listener
        address = listener.getsockname()
        # An abstract address begins with a NUL and has no path.
        self.path = Path(address if isinstance(address, str) else "@" + address[1:].decode(errors="backslashreplace"))

    def close(self) -> None:
        """Close this process's descriptor; the socket lives on with its owner."""
        self.listener.close()


def activated_socket() -> ActivatedSocket | None:
    """Return the socket that the service manager passed, None if it passed none; raises BadAddress if unusable."""
    try:
        descriptors = systemd_descriptors()
    except ValueError as error:
        raise BadAddress(str(error)) from error
    if not descriptors and sys.platform == "darwin":
        import ctypes  # slow to import, and needed on macOS only

        descriptors = launchd_descriptors(SOCKET_NAME, ctypes.CDLL(None))
    return adopt(descriptors) if descriptors else None


def launchd_descriptors(name: str, library: Any) -> list[int]:
    """Return the descriptors that launchd keeps under a name for this process; empty if it did not start it.

    `library` is the C library; raises BadAddress.
    """
    import ctypes  # slow to import, and needed on macOS only

    descriptors = ctypes.POINTER(ctypes.c_int)()
    count = ctypes.c_size_t()
    code = library.launch_activate_socket(name.encode(), ctypes.pointer(descriptors), ctypes.pointer(count))
    if code in _NOT_ACTIVATED:
        return []
    if code:
        raise BadAddress(f"launchd passes no socket named {name}: {os.strerror(code)}")
    try:
        return descriptors[: count.value]
    finally:
        library.free(descriptors)


def adopt(descriptors: list[int]) -> ActivatedSocket:
    """Return the socket of the only descriptor; raises BadAddress for several, and for an unusable one."""
    if len(descriptors) != 1:
        raise BadAddress(f"the service manager passed {len(descriptors)} sockets: card serves one, named {SOCKET_NAME}")
    (descriptor,) = descriptors
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise BadAddress(f"descriptor {descriptor} is not a socket: {os.strerror(error.errno or 0)}") from error
    missing = next((kind for fits, kind in _REQUIRED if not fits(listener)), None)
    if missing is not None:
        listener.close()
        raise BadAddress(
            f"descriptor {descriptor} is not a {missing}: see ListenStream= and Accept=no in the socket unit"
        )
    return ActivatedSocket(listener)


_REQUIRED: list[tuple[Callable[[socket.socket], bool], str]] = [
    (lambda given: given.family == socket.AF_UNIX, "Unix socket"),
    (lambda given: given.type == socket.SOCK_STREAM, "stream socket"),
    (lambda given: bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)), "listening socket"),
]
