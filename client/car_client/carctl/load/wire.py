"""How a load speaks to what it measures: bytes out, pieces of answers in."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from car_client.carctl.load.request import Request
from car_client.errors import CardError


class LoadError(CardError):
    """What is measured did not answer as it should; the message says how."""


class End(Struct, frozen=True):
    """What the end of an answer said; without `tokens` each piece was one."""

    tokens: int | None = None
    prompt_tokens: int | None = None
    queue_ms: float | None = None


class Heard(NamedTuple):
    """How many pieces of text some bytes held, and the end of the answer if it was among them."""

    pieces: int
    end: End | None


class Wire(Protocol):
    """One answer at a time on one connection; nothing here does I/O."""

    keeps_open: bool  # whether the connection may be asked again

    def ask(self, request: Request) -> bytes:
        """Return what to send."""

    def hear(self, data: bytes) -> Heard:
        """Take what came. Raises LoadError."""

    def closed(self) -> End | None:
        """Return the end of the answer if the end of the connection is that."""
