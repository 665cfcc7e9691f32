"""The asyncio client's connection: made again after each loss, with backoff, until the client is closed."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from car_client.errors import DaemonUnavailable
from car_client.paths import unavailable
from car_client.retry import backoff
from car_client.transport.async_connection import AsyncConnection
from car_client.transport.interruptible import Interrupted, Interruptible

Pause = Callable[[float], Coroutine[Any, Any, None]]


class AsyncReconnector:
    """Keeps a connection to the first of `paths` that answers, from `start` to `aclose`."""

    def __init__(self, paths: list[Path], pause: Pause) -> None:
        self._paths = paths
        self._pause = pause
        self.connection: AsyncConnection | None = None  # None while there is no live one
        self._connected = asyncio.Event()
        self._tried = asyncio.Event()  # set after the first attempt, which is made even with a timeout of 0
        self._task: asyncio.Task[None] | None = None
        self._failures: dict[Path, OSError] = {}  # of the last attempt on each path
        self._pauses = Interruptible()  # of calls that are sent again; `aclose` ends them

    def start(self) -> None:
        """Begin to connect in the background; further calls do nothing. Raises DaemonUnavailable once closed."""
        if self._pauses.over:
            raise _closed()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_connected(), name="card connection")

    async def ready(self, timeout_s: float) -> AsyncConnection:
        """Return the live connection; raises ConnectTimeout, or DaemonUnavailable once closed."""
        self.start()
        await self._tried.wait()
        if self.connection is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while self.connection is None and not self._pauses.over:
                        await self._connected.wait()
        if self._pauses.over:
            raise _closed()
        if self.connection is None:
            raise unavailable(self._paths, self._failures)
        return self.connection

    async def pause(self, seconds: float) -> None:
        """Wait before a call is sent again; raises DaemonUnavailable as soon as the client is closed."""
        try:
            await self._pauses.run(self._pause(seconds))
        except Interrupted:
            raise _closed() from None

    async def aclose(self) -> None:
        """End the connection and all pauses, and stop connecting."""
        self._pauses.end()
        self._connected.set()
        self._tried.set()
        if self.connection is not None:
            self.connection.close(_closed())
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_connected(self) -> None:
        delays = backoff()
        while True:
            connection = await self._connect()
            self._tried.set()
            if connection is not None:
                try:
                    if not connection.lost.is_set():
                        self.connection = connection
                        self._connected.set()
                    await connection.lost.wait()
                finally:
                    connection.close()
                if connection.session.greeted:
                    delays = backoff()
            await self._pause(next(delays))

    async def _connect(self) -> AsyncConnection | None:
        loop = asyncio.get_running_loop()
        for path in self._paths:
            try:
                _, connection = await loop.create_unix_connection(lambda: AsyncConnection(self._on_lost), str(path))
            except OSError as error:
                self._failures[path] = error
            else:
                return connection
        return None

    def _on_lost(self) -> None:
        self.connection = None
        self._connected.clear()


def _closed() -> DaemonUnavailable:
    return DaemonUnavailable("the client is closed")
