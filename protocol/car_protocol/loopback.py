"""Ports of the loopback interface, and Unix sockets, as configurations name them."""

import ipaddress
import re
from pathlib import Path

from msgspec import Struct

FORMS = "give 127.0.0.1:PORT, [::1]:PORT or unix:/PATH"
_UNIX = "unix:"
_HOST_AND_PORT = re.compile(r"\[([0-9a-fA-F:.]+)\]:(\d{1,5})|([0-9.]+):(\d{1,5})", re.ASCII)
_MOST_PORT = 65_535


class Loopback(Struct, frozen=True):
    """A port that is reachable from this machine only."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL that clients are configured with, without a path."""
        return f"http://{self}"


def read_loopback(text: str, served: str) -> Path | Loopback:
    """Parse an address; raises ValueError with the accepted forms. `served` says what is for this machine only."""
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX))
        if not path.is_absolute() or "\0" in text:
            raise ValueError(f"{text!r} is not an absolute path: {FORMS}")
        return path
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an address with a port: {FORMS}")
    host, port = found[1] or found[3], int(found[2] or found[4])
    if not 1 <= port <= _MOST_PORT:
        raise ValueError(f"port {port} is out of range: give 1 to {_MOST_PORT}")
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ValueError(f"{host!r} is not an address: {FORMS}") from error
    if not address.is_loopback:
        raise ValueError(f"{host} is not a loopback address, and {served}: {FORMS}")
    return Loopback(str(address), port)
