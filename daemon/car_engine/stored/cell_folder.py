"""The folder of one model's files of cells, bounded in bytes and in age, and private to the user of the daemon."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from car_base.host.private_folder import Entry, PrivateFolder, check_owner
from car_base.ipc.types import STORED_AGE_S, STORED_SUFFIX
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.stored_prefix import StoredPrefix, file_name
from car_engine.batching.saved_cells import SavedPrefix
from car_engine.stored.cell_file import Unusable, head_of, packed, read_cells, read_head

# A write takes seconds; the draft of a process that was killed stays behind.
_DRAFT_AGE_S = 600.0
# The index of these is in memory.
_MOST_FILES = 1000


class Written(NamedTuple):
    """A new file, and the names of those that were removed to make room."""

    stored: StoredPrefix
    removed: tuple[str, ...]


class CellFolder:
    """Files of at most `limit` bytes in all; the least recently used of the user that takes most is removed first.

    Files with other names stay, because `cache_dir` may be a folder of other things too. `maker` is the digest of all
    that the values of cells depend on. Several engines may use one folder. `wall_clock` returns seconds as the times of
    files are counted.
    """

    def __init__(self, path: Path, limit: int, maker: bytes, wall_clock: Callable[[], float]) -> None:
        self._path = path
        self.limit = limit
        self._maker = maker
        self._wall_clock = wall_clock

    def __repr__(self) -> str:
        return f"<CellFolder {self._path} limit={self.limit}>"

    def found(self) -> list[StoredPrefix]:
        """Return the prefixes of all files that this model can use; removes the others. Raises OSError."""
        now = self._wall_clock()
        found = []
        with self._opened() as folder:
            self._make_room(folder, 0)  # because the limit may be lower than it was
            for name, size, modified_s in _files(folder):
                if not name.endswith(STORED_SUFFIX):
                    if now - modified_s > _DRAFT_AGE_S:
                        folder.remove(name)
                    continue
                stored = None if now - modified_s > STORED_AGE_S else self._stored(folder, name, size)
                if stored is None:
                    folder.remove(name)
                else:
                    found.append(stored)
        return found

    def read(self, stored: StoredPrefix) -> memoryview | None:
        """Return the cells of a file, and count it as used now; None where it cannot be used, and removes it then."""
        try:
            with self._opened() as folder:
                try:
                    return self._read(folder, stored)
                except Unusable:
                    folder.remove(stored.name)
        except (OSError, MemoryError):
            # It is computed again, as if it had never been stored.
            return None
        return None

    def write(self, saved: SavedPrefix, prefix: Prefix) -> Written:
        """Write cells in place of others; raises OSError."""
        head = head_of(saved, prefix, self._maker)
        start = packed(head)
        name, size = file_name(prefix), len(start) + len(saved.cells)
        with self._opened() as folder:
            removed = self._make_room(folder, size, name)
            folder.write(name, start, saved.cells)
        return Written(StoredPrefix(prefix, saved.lowest, name, size), removed)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; raises OSError."""
        with self._opened() as folder:
            folder.remove(name)

    @contextmanager
    def _opened(self) -> Iterator[PrivateFolder]:
        """Open the folder; raises OSError where another user could replace it by a link in its model's place."""
        with PrivateFolder(self._path) as folder:
            check_owner(os.lstat(self._path.parent))
            yield folder

    def _read(self, folder: PrivateFolder, stored: StoredPrefix) -> memoryview:
        with folder.open(stored.name) as file:
            head = read_head(file, os.fstat(file.fileno()).st_size, self._maker)
            if file_name(head.prefix) != stored.name or head.lowest != stored.lowest:
                raise Unusable
            cells = read_cells(file, head)
            os.utime(file.fileno())
        return cells

    def _stored(self, folder: PrivateFolder, name: str, size: int) -> StoredPrefix | None:
        """Return the prefix of a file; None where it cannot be used."""
        try:
            with folder.open(name) as file:
                head = read_head(file, size, self._maker)
        except (Unusable, OSError):
            return None
        prefix = head.prefix
        return StoredPrefix(prefix, head.lowest, name, size) if file_name(prefix) == name else None

    def _make_room(self, folder: PrivateFolder, size: int, name: str = "") -> tuple[str, ...]:
        """Remove files until one of this size fits; the one that it replaces takes no room."""
        files = [entry for entry in _files(folder) if entry.name != name]
        removed: list[str] = []
        while leaving := self._leaving(files, Entry(name, size, 0.0)):
            folder.remove(leaving.name)
            files.remove(leaving)
            removed.append(leaving.name)
        return tuple(removed)

    def _leaving(self, files: list[Entry], new: Entry) -> Entry | None:
        """Return the file that goes before a new one fits, None where it fits."""
        too_large = sum(each.size for each in files) + new.size > self.limit
        if not files or not (too_large or len(files) >= _MOST_FILES):
            return None
        taken = Counter[str]()
        for each in (*files, new):
            taken[_user_of(each)] += each.size if too_large else 1
        heaviest = max(map(_user_of, files), key=taken.__getitem__)
        return next(each for each in files if _user_of(each) == heaviest)


def _files(folder: PrivateFolder) -> list[Entry]:
    """Return the files of cells and their drafts, the least recently used first; raises OSError."""
    return [entry for entry in folder.entries if STORED_SUFFIX in entry.name]


def _user_of(entry: Entry) -> str:
    return entry.name.partition("-")[0]
