"""The protocol of a load: bytes of requests out, pieces of answers in."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from car_client.carctl.load.request import Request
from car_client.errors import CardError


class LoadError(CardError):
    """The target refused, failed or broke its protocol."""


class End(Struct, frozen=True):
    """Figures at the end of an answer; without `tokens` each piece counts as one."""

    tokens: int | None = None
    prompt_tokens: int | None = None
    queue_ms: float | None = None


class Received(NamedTuple):
    """The number of pieces of text in received bytes, and the end of the answer if it was among them."""

    pieces: int
    end: End | None


class Codec(Protocol):
    """Encodes requests and decodes answers, one at a time, without I/O."""

    keeps_open: bool  # whether another request may be sent on the connection

    def encode(self, request: Request) -> bytes:
        """Return the bytes of a request."""

    def receive(self, data: bytes) -> Received:
        """Decode received bytes; raises LoadError."""

    def closed(self) -> End | None:
        """Return the end of the answer if the end of the connection ends it."""
