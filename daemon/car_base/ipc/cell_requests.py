"""Requests of an engine about its files of cells, and the reply: lines of JSON on a socket beside the frames' one.

The bytes of a file follow the line that announces them. Each request has one reply.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from car_base.ipc.types import STORED_SUFFIX

# A uid and digests. No name leads out of the folder, or to a file of other things.
StoredName = Annotated[str, Meta(pattern=rf"\A[0-9]{{1,10}}-[0-9a-f-]{{1,100}}{STORED_SUFFIX}\Z")]
MAX_LINE_BYTES = 256


class WriteCells(Struct, frozen=True, tag=True):
    """Write a file of `size` bytes, which follow the line."""

    name: StoredName
    size: Annotated[int, Meta(gt=0)]


class RemoveCells(Struct, frozen=True, tag=True):
    """Remove a file, if it is there."""

    name: StoredName


class CellsKept(Struct, frozen=True):
    """The names of files that made room, and the number of the error that ended the request; 0 without an error."""

    removed: list[str] = []
    error: int = 0


CellRequest = WriteCells | RemoveCells


def line_of(message: CellRequest | CellsKept) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


decode_request = msgspec.json.Decoder(CellRequest).decode
decode_kept = msgspec.json.Decoder(CellsKept).decode
