"""A connection of a load: one answer at a time, with the moment of every piece."""

import asyncio
import time
from typing import cast

from car_client.carctl.load.request import Request
from car_client.carctl.load.timed import Timed
from car_client.carctl.load.wire import End, LoadError, Wire


class Connection(asyncio.Protocol):
    """Knows no protocol: its wire does."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # Mutable state: the answer that is awaited, when its pieces came, what to tell with the first, and why no
        # more answers come.
        self._transport: asyncio.WriteTransport | None = None
        self._end: asyncio.Future[End] | None = None
        self._came: list[float] = []
        self._started: asyncio.Event | None = None
        self._loss: LoadError | None = None

    async def stream(self, request: Request, started: asyncio.Event | None = None) -> Timed:
        """Ask, and return the answer's times; `started` is set with its first piece. Raises LoadError."""
        assert self._transport is not None
        if self._loss is not None:
            raise self._loss
        self._came = []
        self._started = started
        self._end = asyncio.get_running_loop().create_future()
        asked = time.perf_counter()
        self._transport.write(self._wire.ask(request))
        end = await self._end
        came = self._came or [time.perf_counter()]
        tokens = len(self._came) if end.tokens is None else end.tokens
        return Timed(asked, came, tokens, end.prompt_tokens, end.queue_ms)

    @property
    def reusable(self) -> bool:
        """Whether it can be asked again."""
        assert self._transport is not None
        return self._wire.keeps_open and self._loss is None and not self._transport.is_closing()

    def close(self) -> None:
        """Close it."""
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once it is open."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with what came."""
        now = time.perf_counter()
        try:
            pieces, end = self._wire.hear(data)
        except LoadError as error:
            self._fail(error)
            return
        if pieces:
            self._came.extend([now] * pieces)
            if self._started is not None:
                self._started.set()
        if end is not None and (awaited := self._awaited) is not None:
            awaited.set_result(end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio at its end."""
        awaited = self._awaited
        if awaited is not None and self._came and (end := self._wire.closed()) is not None:
            awaited.set_result(end)
        else:
            self._fail(LoadError("the connection was closed before the answer ended"))

    @property
    def _awaited(self) -> asyncio.Future[End] | None:
        return None if self._end is None or self._end.done() else self._end

    def _fail(self, error: LoadError) -> None:
        # What comes while nobody waits, a refusal for example, is for who asks next.
        self._loss = self._loss or error
        if (awaited := self._awaited) is not None:
            awaited.set_exception(error)
