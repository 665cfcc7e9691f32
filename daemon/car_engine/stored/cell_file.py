"""The format of a file of cells: a head with their prefix and maker, then the cells."""

import hashlib
import zlib
from io import BufferedReader

import msgspec
import numpy as np
from msgspec import Struct

from car_engine.batching.prefix import Prefix, SavedPrefix

# The last byte is the version of the format: a file of another one is not read.
_MAGIC = b"card cells\n\x02"
_LENGTH_BYTES = 4
_DIGEST_BYTES = 16
_START_BYTES = len(_MAGIC) + _LENGTH_BYTES + _DIGEST_BYTES
# Of four million tokens.
_MOST_HEAD_BYTES = 16 << 20


class Unusable(Exception):
    """The file is damaged, truncated, of another format or model, or not one of cells at all."""


class Head(Struct, frozen=True):
    """The prefix of the cells and its namespace; `maker` is the digest of all that their values depend on."""

    maker: bytes
    namespace: str
    step: int
    tokens: bytes
    cells_bytes: int
    cells_crc: int

    @property
    def prefix(self) -> Prefix:
        """The tokens, under the name that their namespace has in files."""
        return Prefix(np.frombuffer(self.tokens, np.int32), self.namespace, self.step)


def head_of(saved: SavedPrefix, prefix: Prefix, maker: bytes) -> Head:
    """Return the head of a file; takes a third of a second for a gigabyte."""
    crc = zlib.crc32(saved.cells)
    tokens = prefix.tokens.astype(np.int32, copy=False).tobytes()
    return Head(maker, prefix.namespace, prefix.step, tokens, len(saved.cells), crc)


def packed(head: Head) -> bytes:
    """Return the bytes before the cells."""
    body = msgspec.msgpack.encode(head)
    digest = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
    return b"".join((_MAGIC, len(body).to_bytes(_LENGTH_BYTES, "little"), digest, body))


def read_head(file: BufferedReader, size: int, maker: bytes) -> Head:
    """Read the bytes before the cells of a file of this size; raises Unusable and OSError."""
    start = file.read(_START_BYTES)
    length = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + _LENGTH_BYTES], "little")
    if len(start) < _START_BYTES or not start.startswith(_MAGIC) or length > _MOST_HEAD_BYTES:
        raise Unusable
    body = file.read(length)
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != start[-_DIGEST_BYTES:]:
        raise Unusable
    try:
        head = msgspec.msgpack.decode(body, type=Head)
    except msgspec.DecodeError:
        raise Unusable from None
    if head.maker != maker or size != _START_BYTES + length + head.cells_bytes or not _consistent(head):
        raise Unusable
    return head


def read_cells(file: BufferedReader, head: Head) -> memoryview:
    """Read the cells after the head; raises Unusable and OSError."""
    # Zeroed memory, as of a bytearray, would be written twice.
    cells = np.empty(head.cells_bytes, np.uint8).data
    if file.readinto(cells) != head.cells_bytes or zlib.crc32(cells) != head.cells_crc:
        raise Unusable
    return cells


def _consistent(head: Head) -> bool:
    """Return whether the figures can be true; the digest proves only that no byte changed."""
    tokens, rest = divmod(len(head.tokens), np.dtype(np.int32).itemsize)
    return tokens > 0 and not rest and head.step > 0 and head.cells_bytes > 0
