"""A connection of a load: one answer at a time, with the time of every piece."""

import asyncio
import time
from typing import cast

from car_client.carctl.load.codec import Codec, End, LoadError
from car_client.carctl.load.request import Request
from car_client.carctl.load.timed_answer import TimedAnswer


class Connection(asyncio.Protocol):
    """Sends requests and times their answers; its codec holds the protocol."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._transport: asyncio.WriteTransport | None = None  # set once by connection_made
        self._end: asyncio.Future[End] | None = None  # of the current or the last answer
        self._piece_times: list[float] = []
        self._started: asyncio.Event | None = None  # set with the first piece
        self._loss: LoadError | None = None  # the reason for which no more answers can come

    async def stream(self, request: Request, started: asyncio.Event | None = None) -> TimedAnswer:
        """Send a request and return its timed answer; `started` is set with the first piece. Raises LoadError."""
        assert self._transport is not None
        if self._loss is not None:
            raise self._loss
        self._piece_times = []
        self._started = started
        self._end = asyncio.get_running_loop().create_future()
        sent_at = time.perf_counter()
        self._transport.write(self._codec.encode(request))
        end = await self._end
        piece_times = self._piece_times or [time.perf_counter()]
        tokens = len(self._piece_times) if end.tokens is None else end.tokens
        return TimedAnswer(sent_at, piece_times, tokens, end.prompt_tokens, end.queue_ms)

    @property
    def reusable(self) -> bool:
        """Another request can be sent."""
        assert self._transport is not None
        return self._codec.keeps_open and self._loss is None and not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by asyncio)."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Time the pieces in received bytes (called by asyncio)."""
        now = time.perf_counter()
        try:
            pieces, end = self._codec.receive(data)
        except LoadError as error:
            self._fail(error)
            return
        if pieces:
            self._piece_times.extend([now] * pieces)
            if self._started is not None:
                self._started.set()
        if end is not None and (awaited := self._awaited) is not None:
            awaited.set_result(end)

    def connection_lost(self, exc: Exception | None) -> None:
        """End or fail the awaited answer (called by asyncio)."""
        awaited = self._awaited
        if awaited is not None and self._piece_times and (end := self._codec.closed()) is not None:
            awaited.set_result(end)
        else:
            self._fail(LoadError("the connection was closed before the answer ended"))

    @property
    def _awaited(self) -> asyncio.Future[End] | None:
        return None if self._end is None or self._end.done() else self._end

    def _fail(self, error: LoadError) -> None:
        # An error that comes between two answers, a refusal for example, fails the next request.
        self._loss = self._loss or error
        if (awaited := self._awaited) is not None:
            awaited.set_exception(error)
