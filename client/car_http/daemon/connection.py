"""One connection to the daemon with one call at a time; reading pauses while events are not taken."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from car_client.errors import CardError, ConnectionLost, ProtocolError, from_object
from car_client.results import Chunk
from car_client.transport.async_connection import last_words
from car_client.transport.protocol_session import MAX_INCOMING_BYTES
from car_protocol.answer import Progress
from car_protocol.envelope import NOT_JSON, Request, decode_incoming, encode_message
from car_protocol.framing import LineFramer
from car_protocol.methods import CHUNK, PROGRESS

# Bytes of events that are not taken, beyond which the socket is not read.
_PAUSE_BYTES = 64 * 1024


class Ended(Struct, frozen=True):
    """The result of the call, as JSON text."""

    result: Raw


class Notice(Struct, frozen=True):
    """The params of a notification other than chunks and progress, as JSON text."""

    params: Raw


Event = Chunk | Progress | Ended | Notice
_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_progress = msgspec.json.Decoder(Progress).decode


class DaemonConnection(asyncio.Protocol):
    """One connection, and the events of its call that were not taken; `on_lost` is called once, at its end."""

    def __init__(self, on_lost: Callable[["DaemonConnection"], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None  # set by connection_made
        self._framer = LineFramer(MAX_INCOMING_BYTES)
        self._events: list[Event] = []
        self._unread = 0  # bytes of the frames behind the events
        self._paused = False
        self._error: Exception | None = None  # ended the call
        self._waiter: asyncio.Future[None] | None = None
        self._ids = 0
        self.answered = False  # a message of the present call came
        self.idle = True  # no call is in flight
        self.lost = False

    @property
    def reused(self) -> bool:
        """Whether the present call is not the first one."""
        return self._ids > 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Turn frames into events."""
        try:
            for frame in self._framer.feed(data):
                self._route(frame)
        except NOT_JSON as error:
            self._fail(ProtocolError(f"the daemon sent a frame that the protocol forbids: {type(error).__name__}"))
            self.close()
        if self._unread > _PAUSE_BYTES and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        self.wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the call in flight, or a subscription."""
        if error is not None and self._transport:
            self.data_received(last_words(self._transport))
        self.lost = True
        self._fail(ConnectionLost("the connection to the daemon was lost"))
        self._on_lost(self)
        self.wake()

    def begin(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a call."""
        self._ids += 1
        self.idle = self.answered = False
        frame = encode_message(Request("2.0", method, self._ids, params))
        if self._transport and not self.lost:
            self._transport.write(frame)

    async def events(self) -> list[Event]:
        """Wait for events and take them; none after `wake` alone. Raises the error that ended the call."""
        if not self._events and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events, self._unread = self._events, [], 0
        if not events and self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it keeps the frames that it goes through, and they keep this connection
        if self._paused and self._transport:
            self._paused = False
            self._transport.resume_reading()
        return events

    def wake(self) -> None:
        """Have `events` return, also without any."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """End the connection, which cancels its call or its subscription at the daemon."""
        self.idle = False
        if self._transport:
            self._transport.abort()

    def _route(self, frame: bytes) -> None:
        message = decode_incoming(frame)
        self.answered = True
        self._unread += len(frame)
        if message.method == CHUNK:
            self._events.append(_decode_chunk(message.params))
        elif message.method == PROGRESS:
            self._events.append(_decode_progress(message.params))
        elif message.method is not None:
            self._events.append(Notice(message.params))
        elif message.error is not None:
            self._fail(from_object(message.error))
        else:
            self.idle = True
            self._events.append(Ended(message.result))

    def _fail(self, error: CardError) -> None:
        """End the call with its first error; events that came before are still taken."""
        self._error = self._error or error
