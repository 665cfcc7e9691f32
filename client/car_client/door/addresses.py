"""The addresses of the door: a Unix socket of this user, and ports of the loopback interface."""

import os
from collections.abc import Mapping
from pathlib import Path

from car_protocol.sockets import MAX_PATH_BYTES, Loopback, fits, read_loopback, socket_path

SOCKET_NAME = "http.sock"
Address = Path | Loopback


def default_socket(env: Mapping[str, str] = os.environ) -> Path:
    """Return the door's own socket, beside the socket of this user's daemon."""
    others = {name: value for name, value in env.items() if name != "CAR_SOCKET"}
    return socket_path(env=others).with_name(SOCKET_NAME)


def read_address(text: str) -> Address:
    """Parse an address; raises ValueError with the accepted forms."""
    address = read_loopback(text, "the door serves this machine only")
    if isinstance(address, Path) and not fits(address):
        raise ValueError(f"the path {address} is longer than {MAX_PATH_BYTES} bytes: choose a shorter one")
    return address
