"""`GET /health` of the door, over a loopback port or its Unix socket."""

import http.client
import socket

from car_client.door.addresses import Address
from car_protocol.sockets import Loopback

# A door that its socket unit starts has its Python to import first.
_TIMEOUT_S = 10.0
_ANSWERS = {200: "answers", 503: "answers, but no daemon does: carctl up starts one"}


def health(address: Address) -> tuple[bool, str]:
    """Return whether the door and its daemon answer at an address, and the state in words."""
    connection = _connection(address)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return False, f"does not answer ({getattr(error, 'strerror', None) or type(error).__name__})"
    finally:
        connection.close()
    return status in _ANSWERS and status < http.client.BAD_REQUEST, _ANSWERS.get(status, f"answers {status}: not card")


def _connection(address: Address) -> http.client.HTTPConnection:
    if isinstance(address, Loopback):
        return http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    return _UnixConnection(str(address))


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
