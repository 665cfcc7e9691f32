"""The daemon's side of stored cells: engines only read their folder, and the daemon alone writes and removes files."""

import contextlib
import errno
import fcntl
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from threading import Thread

from msgspec import DecodeError

from car_base.host.private_folder import Entry, PrivateFolder, check_owner
from car_base.ipc.cell_requests import MAX_LINE_BYTES, CellRequest, CellsKept, WriteCells, decode_request, line_of
from car_base.ipc.types import STORED_SUFFIX

# An engine has the index of these in memory.
_MOST_FILES = 1000
_BLOCK_BYTES = 1 << 18


class CellKeeper:
    """Keeps the files of cells in a folder within `limit` bytes, whatever an engine requests.

    The least recently used file of the user that takes most is removed first. Files with other names stay, because
    `cache_dir` may be a folder of other things too. Several engines, also of several daemons, may use one folder.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit

    def __repr__(self) -> str:
        return f"<CellKeeper {self._path} limit={self._limit}>"

    def connect(self) -> socket.socket:
        """Make the folder and keep its limit; return the engine's end of a socket, which a thread serves until its end.

        A folder that cannot be used is reported by the engine, once its model is loaded.
        """
        with contextlib.suppress(OSError), PrivateFolder(self._path):
            pass
        with contextlib.suppress(OSError), self._opened() as folder:
            self._make_room(folder)  # because the limit may be lower than it was
        ours, theirs = socket.socketpair()
        Thread(target=self._serve, args=(ours,), name="cells", daemon=True).start()
        return theirs

    def _serve(self, ours: socket.socket) -> None:
        """Carry out requests in order; one out of range, or longer than a line, ends the connection."""
        # An engine may end at any time, also within a file.
        with ours, ours.makefile("rb") as source, contextlib.suppress(OSError, DecodeError):
            while line := source.readline(MAX_LINE_BYTES):
                ours.sendall(line_of(self._carry_out(decode_request(line), source)))

    def _carry_out(self, request: CellRequest, source: BufferedReader) -> CellsKept:
        sent, removed = _Sent(source, request.size if isinstance(request, WriteCells) else 0), list[str]()
        try:
            with self._opened() as folder:
                folder.discard(request.name)
                if isinstance(request, WriteCells):
                    self._write(folder, request, sent, removed)
        except OSError as error:
            sent.skip()
            return CellsKept(removed, error.errno or errno.EIO)
        return CellsKept(removed)

    def _write(self, folder: PrivateFolder, request: WriteCells, sent: "_Sent", removed: list[str]) -> None:
        """Write a file, and note the names of the files that made room for it; raises OSError."""
        if request.size > self._limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        draft = f"{request.name}.{secrets.token_hex(8)}"
        with folder.draft(draft, request.size) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: a draft without a lock is abandoned
            # After the reservation, so that of two engines at least one counts both files.
            removed += self._make_room(folder, draft)
            # A draft that another engine removed is written no further, because its bytes would count nowhere.
            while (block := sent.next()) and os.fstat(file).st_nlink:
                while block:
                    block = block[os.write(file, block) :]
            folder.rename(draft, request.name)

    @contextmanager
    def _opened(self) -> Iterator[PrivateFolder]:
        """Open the folder; raises OSError if it is gone, or another user could replace it by a link."""
        check_owner(os.lstat(self._path.parent))
        os.lstat(self._path)
        with PrivateFolder(self._path) as folder:
            yield folder

    def _make_room(self, folder: PrivateFolder, new: str = "") -> list[str]:
        """Remove drafts of daemons that ended, then other files than a new one; return their names.

        Files go until all are within the limit.
        """
        files = [entry for entry in folder.entries if STORED_SUFFIX in entry.name]
        removed = [entry.name for entry in files if entry.name != new and _is_abandoned(folder, entry.name)]
        files = [entry for entry in files if entry.name not in removed]
        for name in removed:
            folder.discard(name)
        while leaving := self._leaving(files, new):
            folder.discard(leaving.name)
            files.remove(leaving)
            removed.append(leaving.name)
        return removed

    def _leaving(self, files: list[Entry], new: str) -> Entry | None:
        """Return the file that goes next, None if all are within the limit."""
        others = [each for each in files if each.name != new]
        too_large = sum(each.size for each in files) > self._limit
        if not others or not (too_large or len(files) > _MOST_FILES):
            return None
        taken = Counter[str]()
        for each in files:
            taken[_user_of(each)] += each.size if too_large else 1
        heaviest = max(map(_user_of, others), key=taken.__getitem__)
        return next(each for each in others if _user_of(each) == heaviest)


class _Sent:
    """The bytes of a file that an engine sends; raises OSError if the engine ends before."""

    def __init__(self, source: BufferedReader, size: int) -> None:
        self._source = source
        self._left = size

    def next(self) -> bytes:
        """Return the next block; empty at the end."""
        block = self._source.read1(min(self._left, _BLOCK_BYTES)) if self._left else b""
        if self._left and not block:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self._left -= len(block)
        return block

    def skip(self) -> None:
        """Read what is left, so that the next request can be read."""
        while self.next():
            pass


def _is_abandoned(folder: PrivateFolder, name: str) -> bool:
    """Return whether this is a draft that nobody writes."""
    if name.endswith(STORED_SUFFIX):
        return False
    try:
        with folder.open(name) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _user_of(entry: Entry) -> str:
    return entry.name.partition("-")[0]
