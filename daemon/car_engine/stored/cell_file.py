"""The format of a file of cells: a head with their prefix and maker, then the cells, then states."""

import hashlib
import zlib
from io import BufferedReader

import msgspec
import numpy as np
from msgspec import Struct

from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.stored_prefix import Contents

# The last byte is the version of the format: a file of another one is not read.
_MAGIC = b"card cells\n\x03"
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
    states: dict[int, int]  # bytes by the number of tokens before each, ascending
    crc: int  # of cells and states

    @property
    def prefix(self) -> Prefix:
        """The tokens, under the name that their namespace has in files."""
        return Prefix(np.frombuffer(self.tokens, np.int32), self.namespace, self.step)

    @property
    def parts_bytes(self) -> int:
        """The bytes after the head."""
        return self.cells_bytes + sum(self.states.values())


def head_of(contents: Contents, prefix: Prefix, maker: bytes) -> Head:
    """Return the head of a file; takes a third of a second for a gigabyte."""
    crc = zlib.crc32(contents.cells)
    for state in contents.states.values():
        crc = zlib.crc32(state, crc)
    tokens = prefix.tokens.astype(np.int32, copy=False).tobytes()
    sizes = {place: len(state) for place, state in contents.states.items()}
    return Head(maker, prefix.namespace, prefix.step, tokens, len(contents.cells), sizes, crc)


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
    if head.maker != maker or size != _START_BYTES + length + head.parts_bytes or not _consistent(head):
        raise Unusable
    return head


def read_contents(file: BufferedReader, head: Head) -> Contents:
    """Read cells and states after the head; raises Unusable and OSError."""
    crc = 0
    parts = []
    for size in (head.cells_bytes, *head.states.values()):
        # Zeroed memory, as of a bytearray, would be written twice. Each part is freed alone.
        part = np.empty(size, np.uint8).data
        if file.readinto(part) != size:
            raise Unusable
        crc = zlib.crc32(part, crc)
        parts.append(part)
    if crc != head.crc:
        raise Unusable
    cells, *states = parts
    return Contents(cells, dict(zip(head.states, states, strict=True)))


def _consistent(head: Head) -> bool:
    """Return whether the figures can be true; the digest proves only that no byte changed."""
    tokens, rest = divmod(len(head.tokens), np.dtype(np.int32).itemsize)
    states = all(0 < place < tokens and size > 0 for place, size in head.states.items())
    return tokens > 0 and not rest and head.step > 0 and head.cells_bytes > 0 and states
