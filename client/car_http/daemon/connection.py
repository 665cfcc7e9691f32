"""One connection to the daemon with one call at a time; reading pauses while events are not taken."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from car_client.errors import CardError, ConnectionLost, ProtocolError, from_object
from car_client.results import Chunk
from car_http.daemon.plain import leading_text
from car_http.daemon.reading import Reading, Turns
from car_protocol.answer import Progress
from car_protocol.envelope import NOT_JSON, Request, decode_incoming, encode_message
from car_protocol.framing import LineFramer
from car_protocol.methods import CHUNK, PROGRESS

# An answer may be longer than a request: escapes make up to six bytes of one.
_MAX_INCOMING_BYTES = 64 * 1024 * 1024
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

    def __init__(self, on_lost: Callable[["DaemonConnection"], None], turns: Turns) -> None:
        self._on_lost = on_lost
        self._reading = Reading(turns, self.data_received)
        self._transport: asyncio.Transport | None = None  # set by connection_made
        self._framer = LineFramer(_MAX_INCOMING_BYTES)
        self._events: list[Event] = []
        self._unread = 0  # bytes of the frames behind the events
        self._paused = False
        self._error: Exception | None = None  # ended the call
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[list[Event]], bool] | None = None  # set by on_events
        self._take_text: Callable[[bytes], bool] | None = None  # set by on_texts
        self._offer: Callable[[bytes], bool] | None = None  # the same while a task waits and no part of a frame came
        self._ids = 0
        self.answered = False  # a message of the present call came
        self.took_text = False  # a text was taken since this was set to False
        self.idle = True  # no call is in flight
        self.lost = False

    @property
    def reused(self) -> bool:
        """Whether the present call is not the first one."""
        return self._ids > 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._reading.begin(self._transport)

    def data_received(self, data: bytes) -> None:
        """Turn frames into events, but for chunks of a text alone whose joined text is taken as it is."""
        size = len(data)
        if self._offer is not None:
            text, rest = leading_text(data)
            if text and self._offer(text):
                data = rest
                self.answered = self.took_text = True
            if not data:
                self._reading.count(size)
                return
        try:
            for frame in self._framer.feed(data):
                self._route(frame)
        except NOT_JSON as error:
            self._fail(ProtocolError(f"the daemon sent a frame that the protocol forbids: {type(error).__name__}"))
            self.close()
        if self._taken():
            self._begin_offering()
            self._reading.count(size)
            return
        self._reading.at_once()
        if self._unread > _PAUSE_BYTES and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        self.wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the call in flight, or a subscription."""
        self.lost = True
        self._reading.at_once()
        self._fail(ConnectionLost("the connection to the daemon was lost"))
        self._on_lost(self)
        self.wake()

    def begin(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a call."""
        self._ids += 1
        self.idle = self.answered = False
        self._reading.reset()
        frame = encode_message(Request("2.0", method, self._ids, params))
        if self._transport and not self.lost:
            self._transport.write(frame)

    def on_events(self, take: Callable[[list[Event]], bool] | None) -> None:
        """Offer events to `take` while `events` waits, which wakes up for those alone that it declines."""
        self._take = take

    def on_texts(self, take: Callable[[bytes], bool] | None) -> None:
        """Offer the text of chunks of a text alone, joined, to `take` before, as JSON without its quotes."""
        self._take_text, self._offer = take, None

    async def events(self) -> list[Event]:
        """Wait for events and take them; none after `wake` alone. Raises the error that ended the call."""
        if not self._events and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            self._begin_offering()
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
        self._offer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, error: CardError) -> None:
        """End the call with an error of the door's, and the connection."""
        self._fail(error)
        self.close()
        self.wake()

    def close(self) -> None:
        """End the connection, which cancels its call or its subscription at the daemon."""
        self.idle = False
        if self._transport:
            self._transport.abort()

    def _begin_offering(self) -> None:
        self._offer = None if self._framer.pending else self._take_text

    def _taken(self) -> bool:
        """Return whether the events were taken without waking a task up, which costs more than a token's bytes."""
        waiting = self._waiter is not None and not self._waiter.done()
        if not (waiting and self._take is not None and self._events):
            return False
        try:
            taken = self._take(self._events)
        except Exception as error:  # noqa: BLE001 - the task of the call raises it
            self._events, self._error = [], error
            return False
        if taken:
            self._events, self._unread = [], 0
        return taken

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
