"""One model's files of cells: the engine reads them, and has the daemon write and remove them."""

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from car_base.host.private_folder import PrivateFolder, check_owner
from car_base.ipc.types import STORED_SUFFIX
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.stored_prefix import Contents, StoredPrefix, file_name
from car_engine.stored.cell_writer import CellWriter

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


_PIECE_BYTES = 1 << 20


class Written(NamedTuple):
    """A new file, and the names of the files that were removed to make room."""

    stored: StoredPrefix
    removed: tuple[str, ...]


class CellFolder:
    """Files of at most `limit` bytes in all, which the daemon keeps.

    `maker` is the digest of all that the values of cells depend on. Several engines may use one folder.
    """

    def __init__(self, path: Path, limit: int, maker: bytes, writer: CellWriter) -> None:
        self._path = path
        self.limit = limit
        self._maker = maker
        self._writer = writer

    def __repr__(self) -> str:
        return f"<CellFolder {self._path} limit={self.limit}>"

    def found(self) -> list[StoredPrefix]:
        """Return the prefixes of all files that this model can use; removes the others. Raises OSError."""
        found = []
        with self._opened() as folder:
            for name, size, _ in folder.entries:
                if name.endswith(STORED_SUFFIX):
                    if (stored := self._stored(folder, name, size)) is None:
                        self._writer.remove(name)
                    else:
                        found.append(stored)
        return found

    def read(self, stored: StoredPrefix) -> Contents | None:
        """Return the contents of a file, and count it as used now; None if it cannot be used, and removes it then."""
        try:
            with self._opened() as folder:
                try:
                    return self._read(folder, stored)
                except Unusable:
                    self._writer.remove(stored.name)
        except (OSError, MemoryError):
            # It is computed again, as if it had never been stored.
            return None
        return None

    def read_ahead(self, files: Iterable[StoredPrefix], most: int) -> Iterator[None]:
        """Have the system keep files in its memory: read a piece of 1 MiB at each step, at most `most` bytes in all."""
        piece = bytearray(_PIECE_BYTES)
        for stored in files:
            if stored.size > most:
                continue
            most -= stored.size
            with suppress(OSError), self._opened() as folder, folder.open(stored.name) as file:
                while file.readinto(piece):
                    yield

    def write(self, contents: Contents, prefix: Prefix) -> Written:
        """Write cells and states in place of others; raises OSError."""
        head = head_of(contents, prefix, self._maker)
        start, name = packed(head), file_name(prefix)
        removed = self._writer.write(name, start, contents.cells, *contents.states.values())
        return Written(StoredPrefix(prefix, name, len(start) + head.parts_bytes, tuple(head.states)), removed)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; raises OSError."""
        self._writer.remove(name)

    @contextmanager
    def _opened(self) -> Iterator[PrivateFolder]:
        """Open the folder; raises OSError if another user could replace it by a link in its model's place."""
        with PrivateFolder(self._path) as folder:
            check_owner(os.lstat(self._path.parent))
            yield folder

    def _read(self, folder: PrivateFolder, stored: StoredPrefix) -> Contents:
        with folder.open(stored.name) as file:
            head = read_head(file, os.fstat(file.fileno()).st_size, self._maker)
            if file_name(head.prefix) != stored.name:
                raise Unusable
            contents = read_contents(file, head)
            os.utime(file.fileno())
        return contents

    def _stored(self, folder: PrivateFolder, name: str, size: int) -> StoredPrefix | None:
        """Return the prefix of a file; None if it cannot be used."""
        try:
            with folder.open(name) as file:
                head = read_head(file, size, self._maker)
        except (Unusable, OSError):
            return None
        prefix = head.prefix
        return StoredPrefix(prefix, name, size, tuple(head.states)) if file_name(prefix) == name else None
