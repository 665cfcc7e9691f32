"""The connection that comes back: attempts with backoff, for as long as the client is open."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from car_client.connection import Connection
from car_client.errors import DaemonUnavailable
from car_client.paths import unavailable

Pause = Callable[[float], Awaitable[None]]
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0


def backoff() -> Iterator[float]:
    """Yield the seconds to wait before each attempt, doubling up to LONGEST_DELAY_S."""
    delay = FIRST_DELAY_S
    while True:
        yield delay
        delay = min(2 * delay, LONGEST_DELAY_S)


class Link:
    """Keeps a connection to the first of `paths` that answers, from `start` to `close`."""

    def __init__(self, paths: list[Path], pause: Pause) -> None:
        self._paths = paths
        self._pause = pause
        # Mutable state: the live connection, whether there is one, the task that keeps it, and why the last
        # attempt failed.
        self.connection: Connection | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._failures: dict[Path, OSError] = {}

    def start(self) -> None:
        """Begin to connect in the background; further calls do nothing."""
        if self._closed:
            raise DaemonUnavailable("the client is closed")
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="card connection")

    async def ready(self, patience_s: float) -> Connection:
        """Return the live connection; raises DaemonUnavailable where none comes in time."""
        self.start()
        if self.connection is None:
            with contextlib.suppress(TimeoutError):
                await self._come_up(patience_s)
        if self._closed:
            raise DaemonUnavailable("the client is closed")
        if self.connection is None:
            raise unavailable(self._paths, self._failures)
        return self.connection

    async def close(self) -> None:
        """End the connection and stop connecting."""
        self._closed = True
        self._up.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _come_up(self, patience_s: float) -> None:
        async with asyncio.timeout(patience_s):
            while self.connection is None and not self._closed:
                await self._up.wait()

    async def _keep(self) -> None:
        delays = backoff()
        while True:
            connection = await self._connect()
            if connection is not None:
                await self._serve(connection)
                if connection.session.greeted:
                    delays = backoff()
            await self._pause(next(delays))

    async def _connect(self) -> Connection | None:
        loop = asyncio.get_running_loop()
        for path in self._paths:
            try:
                _, connection = await loop.create_unix_connection(lambda: Connection(self._down), str(path))
            except OSError as error:
                self._failures[path] = error
            else:
                return connection
        return None

    async def _serve(self, connection: Connection) -> None:
        try:
            if not connection.lost.is_set():
                self.connection = connection
                self._up.set()
            await connection.lost.wait()
        finally:
            connection.close()

    def _down(self) -> None:
        self.connection = None
        self._up.clear()
