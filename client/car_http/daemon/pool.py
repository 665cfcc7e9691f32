"""Calls to the daemon, each on a connection of its own; clean connections are kept for some seconds."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from car_client.errors import ConnectionLost, ProtocolError
from car_client.paths import unavailable
from car_http.crowds import DaemonCalls, GiveWay
from car_http.daemon.connection import DaemonConnection, Ended
from car_protocol.envelope import NOT_JSON

_KEPT = 8
# A connection counts as a client of the daemon, which may be about to exit because it is idle.
_KEPT_S = 5.0
T = TypeVar("T")


class DaemonPool:
    """Connections to the first of `paths` that answers."""

    def __init__(self, paths: Sequence[Path], calls: DaemonCalls | None = None) -> None:
        self._paths = list(paths)
        self._calls = calls or DaemonCalls()
        self._request: tuple[str, GiveWay] | None = None  # whose calls these are; None: the door's own
        self._kept: dict[DaemonConnection, asyncio.TimerHandle] = {}
        self._used: set[DaemonConnection] = set()

    def of(self, owner: str, request: GiveWay) -> "DaemonPool":
        """Return the pool for a request: its calls count as its owner's, and raise Problem beyond the bound."""
        pool = copy(self)
        pool._request = owner, request
        return pool

    @property
    def in_flight(self) -> int:
        """The number of calls in flight."""
        return len(self._used)

    @asynccontextmanager
    async def call(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[DaemonConnection]:
        """Send a call; leaving before its end cancels it at the daemon. Raises ConnectTimeout."""
        with self._counted():
            connection = await self._connection()
            self._used.add(connection)
            try:
                connection.begin(method, params)
                yield connection
            finally:
                self._used.discard(connection)
                self._keep(connection)

    async def result(self, method: str, params: Mapping[str, Any]) -> msgspec.Raw:
        """Return the result of a call; it is sent again if a kept connection ended before anything of it came.

        Raises CardError.
        """
        while True:
            async with self.call(method, params) as connection:
                try:
                    return await _result(connection)
                except ConnectionLost:
                    if connection.answered or not connection.reused:
                        raise

    async def result_as(self, kind: type[T], method: str, params: Mapping[str, Any]) -> T:
        """Return the result of a call as `kind`; raises CardError, also for a result of another form."""
        return decoded(await self.result(method, params), kind)

    def close(self) -> None:
        """End all connections."""
        for connection in [*self._kept, *self._used]:
            connection.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._request is None:
            yield
            return
        owner, request = self._request
        self._calls.take(owner, request, 1)
        try:
            yield
        finally:
            self._calls.give_back(request, 1)

    async def _connection(self) -> DaemonConnection:
        while self._kept:
            connection, timer = self._kept.popitem()
            timer.cancel()
            if not connection.lost:
                return connection
        return await self._connect()

    async def _connect(self) -> DaemonConnection:
        loop = asyncio.get_running_loop()
        failures = {}
        for path in self._paths:
            try:
                _, connection = await loop.create_unix_connection(self._new, str(path))
            except OSError as error:
                failures[path] = error
            else:
                return connection
        raise unavailable(self._paths, failures)

    def _new(self) -> DaemonConnection:
        return DaemonConnection(self._on_lost)

    def _keep(self, connection: DaemonConnection) -> None:
        if connection.idle and not connection.lost and len(self._kept) < _KEPT:
            self._kept[connection] = asyncio.get_running_loop().call_later(_KEPT_S, connection.close)
        else:
            connection.close()

    def _on_lost(self, connection: DaemonConnection) -> None:
        if timer := self._kept.pop(connection, None):
            timer.cancel()


def decoded(result: msgspec.Raw, kind: type[T]) -> T:
    """Return a result as `kind`; raises ProtocolError."""
    try:
        return msgspec.json.decode(result, type=kind)
    except NOT_JSON as error:
        raise ProtocolError(f"the daemon sent a result that the door cannot read: {error}") from error


async def _result(connection: DaemonConnection) -> msgspec.Raw:
    while True:
        for event in await connection.events():
            if isinstance(event, Ended):
                return event.result
