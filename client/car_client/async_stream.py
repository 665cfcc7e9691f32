"""An answer that comes in pieces, for asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from car_client.connection import Reply
from car_protocol.answer import Answer, Chunk


class AsyncStream(AsyncIterator[Chunk]):
    """Chunks of one answer. Leaving it early cancels the request; `async with` makes the moment certain."""

    def __init__(self, begin: Callable[[], Awaitable[Reply]]) -> None:
        self._begin = begin
        # Mutable state: the request once it was sent, whether it was cancelled before, whether it is over here, and the
        # answer at the end.
        self._reply: Reply | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False
        self._over = False
        self.answer: Answer | None = None

    async def __anext__(self) -> Chunk:
        if self._over:
            raise StopAsyncIteration
        try:
            reply = await self._started()
            await reply.change()
            if not self._over and reply.exchange.chunks:
                return reply.exchange.chunks.popleft()
            # Who left it while it was being sent asks for no answer.
            self.answer = None if self._over else reply.exchange.read_stream()
        except BaseException:
            await self.aclose()
            raise
        self._over = True
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the request if it still runs; the iteration is over."""
        self._over = True
        self.cancel()

    def cancel(self) -> None:
        """Ask the daemon to end the request: what it sent before still comes, then RequestCancelled."""
        self._cancelled = True
        if self._reply is not None:
            self._reply.cancel()

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # An iterator that a `break` leaves is dropped without a word; the collector may run in any thread.
        if self._reply is not None and self._loop is not None and not self._over:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._reply.cancel)

    async def _started(self) -> Reply:
        if self._reply is None:
            self._loop = asyncio.get_running_loop()
            self._reply = await self._begin()
            if self._cancelled:
                self._reply.cancel()
        return self._reply
