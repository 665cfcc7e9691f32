"""The status again and again, for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from car_client import calls
from car_client.calls import CallSpec
from car_client.errors import InvalidParams
from car_client.results import Status
from car_client.retry import NEVER, Deadline
from car_client.transport.async_connection import (
    AsyncConnection,
    AsyncReply,
    Interrupted,
    Interruptible,
    Pause,
    happens,
)


class AsyncStatusWatch(AsyncIterator[Status]):
    """Statuses as the daemon sends them, as an iterator; a daemon that sends none by itself is polled.

    Several watches of one client have them at the shortest of their intervals. A step raises the same errors as
    `AsyncClient.status`.
    """

    def __init__(
        self,
        connected: Callable[[], Awaitable[AsyncConnection]],
        request: Callable[[CallSpec[Status]], Awaitable[Status]],
        interval_s: float,
        timeout_s: float | None,
        pause: Pause,
    ) -> None:
        self._connected = connected
        self._request = request
        self._interval_s = interval_s
        self._timeout_s = None if timeout_s is None else timeout_s + interval_s
        self._pause = pause
        self._changed = asyncio.Event()
        self._connection: AsyncConnection | None = None  # the one that sends statuses
        self._polls = False  # whether it polls, because no connection sends them
        self._newest: Status | None = None  # received and not yet taken
        self._steps = Interruptible()  # `aclose` ends the one in progress

    async def __anext__(self) -> Status:
        try:
            return await self._steps.run(self._next())
        except Interrupted:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """End the subscription and the iteration, also for a task that waits for the next status."""
        self._steps.end()
        connection, self._connection = self._connection, None
        if connection and not connection.session.loss:
            # With a connection that is lost by now the subscription has ended too.
            deadline, farewell = Deadline(self._timeout_s), AsyncReply(connection, self._farewell(connection))
            await farewell.send(deadline)
            await farewell.wait(deadline)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next(self) -> Status:
        if self._connection:
            return await self._sent(self._connection)
        if not self._polls:
            return await self._begin()
        await self._pause(self._interval_s)
        return await self._request(calls.status())

    async def _begin(self) -> Status:
        connection = await self._connected()
        interval_ms = connection.session.watch(self._on_status, round(self._interval_s * 1000))
        try:
            status = await self._request(calls.subscribe(interval_ms))
        except InvalidParams:
            connection.session.unwatch(self._on_status)
            self._polls = True
            return await self._request(calls.status())
        except BaseException:
            # The request may have reached the daemon; nothing waits for the answer to this one.
            await AsyncReply(connection, self._farewell(connection)).send(NEVER)
            raise
        self._connection = connection
        return status

    def _farewell(self, connection: AsyncConnection) -> CallSpec[Status]:
        """Watch no more; return the call that reduces the subscription to what other watches need."""
        return calls.subscribe(connection.session.unwatch(self._on_status))

    async def _sent(self, connection: AsyncConnection) -> Status:
        deadline = Deadline(self._timeout_s)
        while self._newest is None and connection.session.loss is None:
            self._changed.clear()
            await happens(self._changed, deadline)
        status, self._newest = self._newest, None
        if status is None:
            assert connection.session.loss
            raise connection.session.loss
        return status

    def _on_status(self, status: Status | None) -> None:
        self._newest = status
        self._changed.set()
