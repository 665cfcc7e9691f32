"""Where a load goes: the daemon's socket, or a URL."""

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from car_client.carctl.load.card_wire import CardWire
from car_client.carctl.load.connection import Connection
from car_client.carctl.load.dialect import COMPLETIONS
from car_client.carctl.load.http_wire import HttpWire
from car_client.carctl.load.wire import LoadError

_HTTP = "http://"


class Endpoint(Struct, frozen=True):
    """An `http://` URL, or the path of a daemon's socket; without a path in it a URL means OpenAI's completions."""

    address: str

    async def connect(self, options: dict[str, Any]) -> Connection:
        """Return a new connection, on which every request has these options. Raises LoadError."""
        try:
            return await (self._over_http(options) if self.address.startswith(_HTTP) else self._to_daemon(options))
        except OSError as error:
            # Where several addresses were tried, the error has no number.
            why = os.strerror(error.errno).lower() if error.errno else "connection refused"
            raise LoadError(f"cannot connect to {self.address}: {why}; is it running?") from error

    async def _to_daemon(self, options: dict[str, Any]) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: Connection(CardWire(options)), self.address)
        return connection

    async def _over_http(self, options: dict[str, Any]) -> Connection:
        url = urlsplit(self.address)
        wire = HttpWire(url.netloc, url.path.rstrip("/") or COMPLETIONS, options)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(wire), url.hostname or "", url.port or 80)
        return connection


def parse_url(text: str) -> Endpoint:
    """Read a URL; raises ValueError where it is none that a load can ask."""
    url = urlsplit(text)
    if not text.startswith(_HTTP) or not url.hostname or url.port == 0:
        raise ValueError("has to be like http://127.0.0.1:8080; https is not supported")
    try:
        url.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("no host can have that name") from None
    return Endpoint(text)
