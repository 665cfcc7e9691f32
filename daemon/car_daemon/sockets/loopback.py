"""The address of `[metrics] listen`: a Unix socket of this user, or a port of the loopback interface."""

import ipaddress
import os
import re
import socket
from pathlib import Path

from msgspec import Struct

from car_daemon.sockets.directory import BadAddress
from car_daemon.sockets.own_socket import AddressInUse, OwnSocket

SETTING = "[metrics] listen"
_FORMS = "give 127.0.0.1:PORT, [::1]:PORT or unix:/PATH"
_UNIX = "unix:"
_HOST_AND_PORT = re.compile(r"\[([0-9a-fA-F:.]+)\]:(\d{1,5})|([0-9.]+):(\d{1,5})", re.ASCII)
_MAX_PORT = 65_535


class LoopbackPort(Struct, frozen=True):
    """An address that is reachable from this machine only; `name` is a name of it, beside `localhost`."""

    host: str
    port: int
    name: str | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


MetricsAddress = Path | LoopbackPort


class LoopbackSocket:
    """A listening socket on the loopback interface; raises OSError."""

    def __init__(self, address: LoopbackPort) -> None:
        self.listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Connections of the previous daemon that still time out do not keep the port.
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind((address.host, address.port))
            self.listener.setblocking(False)
            self.listener.listen()
        except OSError:
            self.listener.close()
            raise

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()


MetricsSocket = OwnSocket | LoopbackSocket


class CannotListen(Exception):
    """The metrics cannot be served at the configured address; the message gives the reason."""


def read_address(text: str, name: str | None = None) -> MetricsAddress:
    """Parse `listen`, for requests to `name` too; raises ValueError with the accepted forms."""
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX))
        if not path.is_absolute() or "\0" in text:
            raise ValueError(f"{text!r} is not an absolute path: {_FORMS}")
        return path
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an address with a port: {_FORMS}")
    host, port = found[1] or found[3], int(found[2] or found[4])
    if not 1 <= port <= _MAX_PORT:
        raise ValueError(f"port {port} is out of range: give 1 to {_MAX_PORT}")
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ValueError(f"{host!r} is not an address: {_FORMS}") from error
    if not address.is_loopback:
        raise ValueError(f"{host} is not a loopback address, and metrics are served to this machine only: {_FORMS}")
    return LoopbackPort(str(address), port, name)


def listening_socket(address: MetricsAddress) -> MetricsSocket:
    """Return the bound socket; raises CannotListen."""
    try:
        return OwnSocket(address, setting=SETTING) if isinstance(address, Path) else LoopbackSocket(address)
    except (BadAddress, AddressInUse) as error:
        raise CannotListen(str(error)) from error
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CannotListen(f"cannot serve metrics on {address}: {why}; choose another {SETTING}") from error
