"""The status again and again, for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from car_client import calls
from car_client.calls import Ask
from car_client.connection import Connection, Reply
from car_client.errors import InvalidParams
from car_client.link import Pause
from car_protocol.status import Status


class AsyncStatusWatch(AsyncIterator[Status]):
    """Statuses as the daemon sends them or, where it does not offer that, as they are asked for.

    Several watches of one client have them at the shortest of their intervals. Like every request it raises
    DaemonUnavailable where the connection is lost.
    """

    def __init__(
        self,
        connected: Callable[[], Awaitable[Connection]],
        ask: Callable[[Ask[Status]], Awaitable[Status]],
        interval_s: float,
        pause: Pause,
    ) -> None:
        self._connected = connected
        self._ask = ask
        self._interval_s = interval_s
        self._pause = pause
        self._changed = asyncio.Event()
        # Mutable state: the connection that sends statuses, whether there is one that does not, whether no more are
        # wanted, and the newest status that was not taken.
        self._connection: Connection | None = None
        self._over = False
        self._polls = False
        self._news: Status | None = None

    async def __anext__(self) -> Status:
        if self._over:
            raise StopAsyncIteration
        if self._connection:
            return await self._sent(self._connection)
        if not self._polls:
            return await self._begin()
        await self._pause(self._interval_s)
        status = await self._ask(calls.status())
        if self._over:
            raise StopAsyncIteration
        return status

    async def aclose(self) -> None:
        """Ask for no more statuses; the iteration is over, also for who waits for the next one."""
        self._over = True
        self._changed.set()
        connection, self._connection = self._connection, None
        if connection and not connection.session.loss:
            await self._ask(self._farewell(connection))

    async def _begin(self) -> Status:
        connection = await self._connected()
        interval_ms = connection.session.watch(self._keep, round(self._interval_s * 1000))
        try:
            status = await self._ask(calls.status(subscribe=True, interval_ms=interval_ms))
        except InvalidParams:
            connection.session.unwatch(self._keep)
            self._polls = True
            return await self._ask(calls.status())
        except BaseException:
            # The daemon may have heard of it.
            self._leave(connection)
            raise
        if self._over:
            self._leave(connection)
            raise StopAsyncIteration
        self._connection = connection
        return status

    def _leave(self, connection: Connection) -> None:
        """Have the daemon send no more than others want, without waiting for its answer."""
        Reply(connection, self._farewell(connection))

    def _farewell(self, connection: Connection) -> Ask[Status]:
        """Watch no more; return what tells the daemon which statuses others want."""
        others = connection.session.unwatch(self._keep)
        return calls.status(subscribe=others is not None, interval_ms=others)

    async def _sent(self, connection: Connection) -> Status:
        while self._news is None and connection.session.loss is None and not self._over:
            self._changed.clear()
            await self._changed.wait()
        if self._over:
            raise StopAsyncIteration
        status, self._news = self._news, None
        if status is None:
            assert connection.session.loss
            raise connection.session.loss
        return status

    def _keep(self, status: Status | None) -> None:
        self._news = status
        self._changed.set()
