"""Files of cells that a real keeper of the daemon writes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from car_daemon.engines.cell_keeper import CellKeeper
from car_engine.stored.cell_writer import CellWriter
from tests.pace import HANG_S


class Keepers:
    """Connections to keepers, each for one engine."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def writer(self, path: Path, limit: int) -> CellWriter:
        """Return an engine's way to a folder."""
        self._sockets.append(CellKeeper(path, limit).connect())
        return CellWriter(self._sockets[-1])

    def close(self) -> None:
        """End all engines, and wait for the threads of their keepers."""
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in threading.enumerate():
            if thread.name == "cells":
                thread.join(HANG_S)


@contextmanager
def keepers() -> Iterator[Keepers]:
    """Connections that end with the context."""
    connections = Keepers()
    try:
        yield connections
    finally:
        connections.close()
