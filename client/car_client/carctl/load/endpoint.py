"""The target of a load: the daemon's socket, or a URL."""

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from car_client.carctl.load.card_codec import CardCodec
from car_client.carctl.load.codec import LoadError
from car_client.carctl.load.connection import Connection
from car_client.carctl.load.http.codec import HttpCodec
from car_client.carctl.load.http.dialect import COMPLETIONS

_HTTP = "http://"


class Endpoint(Struct, frozen=True):
    """An `http://` URL, or the path of a daemon's socket; a URL without a path means OpenAI's completions."""

    address: str

    async def connect(self, options: dict[str, Any]) -> Connection:
        """Return a new connection that adds these options to every request; raises LoadError."""
        loop = asyncio.get_running_loop()
        try:
            if not self.address.startswith(_HTTP):
                _, connection = await loop.create_unix_connection(lambda: Connection(CardCodec(options)), self.address)
                return connection
            url = urlsplit(self.address)
            codec = HttpCodec(url.netloc, url.path.rstrip("/") or COMPLETIONS, options)
            _, connection = await loop.create_connection(lambda: Connection(codec), url.hostname or "", url.port or 80)
        except OSError as error:
            # After several addresses asyncio raises an error without a number.
            reason = os.strerror(error.errno).lower() if error.errno else "connection refused"
            raise LoadError(f"cannot connect to {self.address}: {reason}; is it running?") from error
        return connection


def parse_url(text: str) -> Endpoint:
    """Parse an `http://` URL; raises ValueError for any other."""
    url = urlsplit(text)
    if not text.startswith(_HTTP) or not url.hostname or url.port == 0:
        raise ValueError("give a URL like http://127.0.0.1:8080; https is not supported")
    try:
        url.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("the name of the host is not valid") from None
    return Endpoint(text)
