"""The thread that reads and writes files of cells, so that no step waits for a disk."""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Semaphore
from typing import NoReturn

from car_base.ipc.inbox import Inbox
from car_base.ipc.ranges import Event, Facts
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored, Contents, StoredPrefix
from car_engine.stored.cell_folder import CellFolder
from car_engine.stored.cell_writer import NotWritten

# Beside the cells a file has a head.
_HEAD_ROOM = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = "make room on the disk of cache_dir, or lower cache_bytes"
_FOLDER = "see that the daemon's user may write to cache_dir, then load the model again"


class CellStore:
    """Reads, writes and removes files in order, and puts each outcome into the inbox of the loop.

    A disk that takes no more is one warning until a write succeeds again. At most `ahead_bytes` are read ahead.
    """

    def __init__(
        self,
        folder: CellFolder,
        found: Sequence[StoredPrefix],
        put: Callable[[CellsRead | CellsStored], None],
        warn: Callable[[Event, Facts], None],
        ahead_bytes: int = 0,
    ) -> None:
        self._folder = folder
        self.found = found
        self._put = put
        self._warn = warn
        self._jobs: Inbox[Callable[[], None]] = Inbox()
        self._taken = Semaphore(0)
        self.writing = False  # set by the loop, cleared before it has the outcome
        self._fails = False  # the last write did
        self._pieces: Iterator[None] | None = folder.read_ahead(reversed(found), ahead_bytes)  # None after the last
        self._reads_ahead = False  # set by the loop, cleared once the piece is read

    def __repr__(self) -> str:
        return f"<CellStore {self._folder!r} writing={self.writing}>"

    def fits(self, size: int) -> bool:
        """Return whether cells of this size may be stored at all."""
        return size + _HEAD_ROOM <= self._folder.limit

    def read(self, stored: StoredPrefix) -> None:
        """Begin to read cells; CellsRead follows."""
        self._jobs.put(lambda: self._read(stored))

    def read_ahead(self) -> bool:
        """Read a piece of the files that were used last into the system's memory; False if none is left."""
        if self._pieces is not None and not self._reads_ahead:
            self._reads_ahead = True
            self._jobs.put(self._read_piece)
        return self._pieces is not None

    def taken(self) -> None:
        """Read on: the cells that were read last are no longer needed."""
        self._taken.release()

    def write(self, contents: Contents, prefix: Prefix) -> None:
        """Begin to write cells and states; CellsStored follows."""
        self.writing = True
        self._jobs.put(lambda: self._write(contents, prefix))

    def remove(self, stored: StoredPrefix) -> None:
        """Remove a file; nothing follows."""
        self._jobs.put(lambda: self._remove(stored))

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            for job in self._jobs.receive(wait=True):
                job()

    def _read(self, stored: StoredPrefix) -> None:
        started = time.perf_counter()
        contents = self._folder.read(stored)
        self._put(CellsRead(stored, contents, time.perf_counter() - started))
        # The cells of one file are in memory at a time, however many requests wait.
        self._taken.acquire()

    def _read_piece(self) -> None:
        if self._pieces is not None and next(self._pieces, self) is self:
            self._pieces = None
        self._reads_ahead = False

    def _write(self, contents: Contents, prefix: Prefix) -> None:
        outcome = CellsStored(None)
        try:
            outcome = CellsStored(*self._folder.write(contents, prefix))
            self._fails = False
        except OSError as error:
            if isinstance(error, NotWritten):
                outcome = CellsStored(None, error.removed)
            self._failed(error)
        self.writing = False
        self._put(outcome)

    def _remove(self, stored: StoredPrefix) -> None:
        try:
            self._folder.remove(stored.name)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        if not self._fails:
            self._fails = True
            do = _ROOM if error.errno in _FULL else _FOLDER
            self._warn("cells.not_stored", {"why": error.strerror, "do": do})
