"""A streamed answer, for asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from car_client.errors import CardError
from car_client.results import Answer, Chunk
from car_client.retry import Deadline, Retries
from car_client.transport.async_connection import AsyncReply, Interrupted, Interruptible, Pause


class AsyncStream(AsyncIterator[Chunk]):
    """The chunks of one answer, as an iterator. Leaving it early cancels the request; `async with` does so at once.

    After the last chunk `answer` is the whole answer, its text included; it is None before.
    """

    def __init__(
        self,
        begin: Callable[[Deadline], Awaitable[AsyncReply]],
        retries: Retries,
        timeout_s: float | None,
        pause: Pause,
    ) -> None:
        self._begin = begin
        self._retries = retries
        self._timeout_s = timeout_s
        self._pause = pause
        self.answer: Answer | None = None
        self._reply: AsyncReply | None = None  # None until the request is sent, and between attempts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False
        self._waits = Interruptible()  # for a connection and in pauses; `aclose` ends them

    async def __anext__(self) -> Chunk:
        if self._waits.over:
            raise StopAsyncIteration
        if self._reply is not None and self._reply.call.chunks:
            return self._reply.call.chunks.popleft()  # the usual case costs little
        try:
            chunk = await self._next_chunk(Deadline(self._timeout_s))
        except Interrupted:
            raise StopAsyncIteration from None
        except BaseException:
            await self.aclose()
            raise
        if chunk is None:
            self._waits.end()
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Cancel the request if it still runs, and end the iteration, also for a task that waits for the next chunk."""
        self._waits.end()
        self.cancel()

    def cancel(self) -> None:
        """Cancel the request at the daemon: chunks that it sent before still come, then RequestCancelled."""
        self._cancelled = True
        if self._reply is not None:
            self._reply.cancel()

    async def __aenter__(self) -> Self:
        try:
            await self._started(Deadline(self._timeout_s))
        except Interrupted:
            pass
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A `break` drops the iterator without a call, and the collector may run in any thread.
        if self._reply is not None and self._loop is not None and not self._waits.over:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._reply.cancel)

    async def _next_chunk(self, deadline: Deadline) -> Chunk | None:
        """Return the next chunk, None at the end; until the first one came the request may be sent again."""
        while True:
            try:
                reply = await self._started(deadline)
                await reply.wait(deadline)
                if self._waits.over:
                    return None  # closed while this waited
                if reply.call.chunks:
                    return reply.call.chunks.popleft()
                self.answer = reply.call.read_stream()
            except CardError as error:
                if self._cancelled or (self._reply is not None and self._reply.call.received):
                    raise
                pause_s = self._retries.pause_s(error, deadline)
            else:
                return None
            self._reply = None
            await self._waits.run(self._pause(pause_s))

    async def _started(self, deadline: Deadline) -> AsyncReply:
        if self._reply is None:
            return await self._waits.run(self._send(deadline))
        return self._reply

    async def _send(self, deadline: Deadline) -> AsyncReply:
        self._loop = asyncio.get_running_loop()
        self._reply = reply = await self._begin(deadline)
        await reply.send(deadline)
        if self._cancelled:
            reply.cancel()
        return reply
