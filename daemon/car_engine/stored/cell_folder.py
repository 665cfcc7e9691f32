"""One model's files of cells: the engine reads them, and has the daemon write and remove them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from car_base.host.private_folder import PrivateFolder, check_owner
from car_base.ipc.types import STORED_SUFFIX
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.stored_prefix import Contents, StoredPrefix, file_name
from car_engine.stored.cell_file import Unusable, head_of, packed, read_contents, read_head
from car_engine.stored.cell_writer import CellWriter

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
            if (most := most - stored.size) < 0:
                return
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
