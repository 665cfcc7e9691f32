"""The engine's way to write files of cells: the daemon does it, and keeps them within their limit."""

import errno
import os
import socket
from collections.abc import Sequence

from car_base.ipc.cell_requests import CellRequest, CellsKept, RemoveCells, WriteCells, decode_kept, line_of


class NotWritten(OSError):
    """The daemon could not write a file; the files of these names were removed for it."""

    def __init__(self, kept: CellsKept) -> None:
        super().__init__(kept.error, os.strerror(kept.error))
        self.removed = tuple(kept.removed)


class CellWriter:
    """Requests to the daemon, one after the other, over a socket of their own."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._replies = daemon.makefile("rb")

    def write(self, name: str, *parts: bytes | memoryview) -> tuple[str, ...]:
        """Write a file; return the names of the files that were removed for it. Raises OSError, NotWritten."""
        return tuple(self._request(WriteCells(name, sum(map(len, parts))), parts).removed)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; raises OSError."""
        self._request(RemoveCells(name))

    def _request(self, request: CellRequest, parts: Sequence[bytes | memoryview] = ()) -> CellsKept:
        for part in (line_of(request), *parts):
            self._daemon.sendall(part)
        if not (line := self._replies.readline()):
            raise OSError(errno.EPIPE, "the daemon ended its connection")
        kept = decode_kept(line)
        if kept.error:
            raise NotWritten(kept)
        return kept
