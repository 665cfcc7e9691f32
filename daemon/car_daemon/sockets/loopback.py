"""The address of `[metrics] listen`: a Unix socket of this user, or a port of the loopback interface."""

import os
import socket
from pathlib import Path

from car_daemon.sockets.own_socket import AddressInUse, BadAddress, OwnSocket
from car_protocol.sockets import Loopback, read_loopback

SETTING = "[metrics] listen"


class LoopbackPort(Loopback, frozen=True):
    """A port of this machine; `name` is a name of the machine that requests may carry, beside `localhost`."""

    name: str | None = None


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
    address = read_loopback(text, "metrics are served to this machine only")
    return address if isinstance(address, Path) else LoopbackPort(address.host, address.port, name)


def listening_socket(address: MetricsAddress) -> MetricsSocket:
    """Return the bound socket; raises CannotListen."""
    try:
        return OwnSocket(address, setting=SETTING) if isinstance(address, Path) else LoopbackSocket(address)
    except (BadAddress, AddressInUse) as error:
        raise CannotListen(str(error)) from error
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CannotListen(f"cannot serve metrics on {address}: {why}; choose another {SETTING}") from error
