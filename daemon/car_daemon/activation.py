"""A listening socket that the service manager made and keeps (systemd, launchd): only served here, never removed."""

import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path

from car_daemon.directory import BadAddress

# Where sd_listen_fds(3) begins.
_FIRST_DESCRIPTOR = 3
# The name in the units and in the property list.
SOCKET_NAME = "rpc"
_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_MOST_DIGITS = 6


class ActivatedSocket:
    """A listening socket that was handed over; clients queue on it while no daemon runs."""

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.listener = listener
        self.path = Path(_shown(listener.getsockname()))

    def close(self) -> None:
        """Close this process's descriptor; the socket lives on with its owner."""
        self.listener.close()


def activated_socket() -> ActivatedSocket | None:
    """Return the socket that the service manager gave to this process; None where there is none, BadAddress if bad."""
    descriptors = take_descriptors(os.environ)
    if not descriptors and sys.platform == "darwin":
        # Loading ctypes takes time of every start, and no other platform has launchd.
        from car_daemon.launchd import descriptors_named, system_library

        descriptors = descriptors_named(SOCKET_NAME, system_library())
    return adopt(descriptors) if descriptors else None


def take_descriptors(env: MutableMapping[str, str], first: int = _FIRST_DESCRIPTOR) -> list[int]:
    """Return the descriptors that systemd passed to this very process, and take them out of its environment."""
    count, process, _ = (env.pop(name, "") for name in _VARIABLES)
    if process != str(os.getpid()):
        return []
    if not (count.isascii() and count.isdigit() and len(count) <= _MOST_DIGITS):
        raise BadAddress("LISTEN_FDS is no number: the service manager passed no usable socket")
    return list(range(first, first + int(count)))


def adopt(descriptors: list[int]) -> ActivatedSocket:
    """Return the one socket that was passed; raises BadAddress for several, and for what is no socket to serve on."""
    if len(descriptors) != 1:
        raise BadAddress(f"the service manager passed {len(descriptors)} sockets: card serves one, named {SOCKET_NAME}")
    (descriptor,) = descriptors
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise BadAddress(f"descriptor {descriptor} is no socket: {os.strerror(error.errno or 0)}") from error
    fault = next((fault for fits, fault in _FAULTS if not fits(listener)), None)
    if fault is not None:
        listener.close()
        raise BadAddress(f"descriptor {descriptor} is no {fault}: see ListenStream= and Accept=no in the socket unit")
    return ActivatedSocket(listener)


_FAULTS: list[tuple[Callable[[socket.socket], bool], str]] = [
    (lambda given: given.family == socket.AF_UNIX, "Unix socket"),
    (lambda given: given.type == socket.SOCK_STREAM, "stream socket"),
    (lambda given: bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)), "listening socket"),
]


def _shown(address: str | bytes) -> str:
    """Return a socket's address for people: an abstract one begins with a NUL and has no path."""
    return address if isinstance(address, str) else "@" + address[1:].decode(errors="backslashreplace")
