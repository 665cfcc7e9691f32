"""One connected client: frames in, dispatch, one writer out."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from msgspec import Struct

from car_daemon.batch import BatchAnswers, entry_refusal
from car_daemon.exchange import Exchange
from car_daemon.hangup import HangupWatcher
from car_daemon.peer import Peer, peer_of
from car_protocol.answer import Answer
from car_protocol.envelope import (
    Batch,
    Call,
    Failure,
    Notification,
    Result,
    decode_frame,
    encode_message,
)
from car_protocol.errors import RpcError
from car_protocol.framing import LineFramer
from car_protocol.limits import Limits

# A client that reads nothing may have this many times `max_output_bytes` waiting, in answers, before it is dropped.
_ABANDON_FACTOR = 4


class Calls(Protocol):
    """What a connection hands its calls to."""

    def call(self, connection: "Connection", call: Call, exchange: Exchange) -> None:
        """Carry out a request; the exchange is ended now or later."""
        ...

    def notify(self, connection: "Connection", call: Call) -> None:
        """Carry out a notification."""
        ...

    def refused(self, call: Call) -> None:
        """Hear of a request that the connection itself refused."""
        ...


class Registry(Protocol):
    """Who keeps the connections; `admit` returns why a peer is refused, None where it is not."""

    def admit(self, connection: "Connection") -> RpcError | None:
        """Take a new connection or say why not; a foreign peer gets no reason but `not_permitted`."""
        ...

    def lost(self, connection: "Connection") -> None:
        """Forget a connection."""
        ...


class Connection(asyncio.Protocol):
    """Reading never stops; everything written in one turn of the event loop goes out in one write."""

    def __init__(self, number: int, calls: Calls, registry: Registry, hangups: HangupWatcher, limits: Limits) -> None:
        self.number = number
        self._calls = calls
        self._registry = registry
        self._hangups = hangups
        self._limits = limits
        self._framer = LineFramer(limits.max_frame_bytes)
        # Mutable state: the peer, its transport and descriptor, requests in flight by id, bytes for the next write,
        # whether the peer has closed its side, the timer of an unfinished frame, and what the status shows.
        self.peer = Peer(-1, -1)
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self.in_flight: dict[str | int, Exchange] = {}
        self._outgoing: list[bytes] = []
        self._half_closed = False
        self._frame_timer: asyncio.TimerHandle | None = None
        self.subscriptions: set[str] = set()
        self.label: str | None = None
        self.tokens_served = 0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the peer before a byte is read."""
        # uvloop's transports are no subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        connection = transport.get_extra_info("socket")
        self._descriptor = connection.fileno()
        self.peer = peer_of(connection)
        refusal = self._registry.admit(self)
        if refusal is not None and refusal.reason == "not_permitted":
            transport.abort()
        elif refusal is not None:
            self._refuse_all(refusal)

    def data_received(self, data: bytes) -> None:
        """Cut frames and carry them out in order."""
        frames = self._framer.feed(data)
        for frame in frames:
            self._receive(frame)
        if self._framer.overflowed:
            self._refuse_all(RpcError("limit", limit="max_frame_bytes", value=self._limits.max_frame_bytes))
        self._watch_frame(restart=bool(frames))

    def eof_received(self) -> bool:
        """Finish what is in flight after a half-close; a hang-up after it cancels."""
        self._half_closed = True
        self._forget_frame()
        if self.in_flight:
            self._hangups.watch(self._descriptor, self.abort)
        else:
            self.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel everything that ran for this client."""
        self._transport = None
        self._forget_frame()
        self._hangups.forget(self._descriptor)
        for exchange in list(self.in_flight.values()):
            if exchange.cancel is not None:
                exchange.cancel("cancelled")
        self._registry.lost(self)

    # What the daemon calls.

    def notify(self, method: str, params: Struct) -> None:
        """Send a notification."""
        self.send(encode_message(Notification(method, params)))

    def send(self, frame: bytes) -> None:
        """Have a frame written with the others of this turn."""
        if self._transport is None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(frame)

    def close(self) -> None:
        """Write what is to be written, then close."""
        self._flush()
        if self._transport is not None:
            self._forget_frame()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits to be written is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def _receive(self, frame: bytes) -> None:
        try:
            decoded = decode_frame(frame)
        except RpcError as error:
            self._answer(Failure(None, error.as_object()))
            return
        if isinstance(decoded, Batch):
            self._batch(decoded)
        else:
            self._call(decoded, self._end_single)

    def _call(self, call: Call, end: Callable[[Exchange, Result | Failure], None]) -> None:
        if call.id is None:
            self._calls.notify(self, call)
            return
        exchange = Exchange(call.id, len(call.params), end, self.send)
        if refusal := self._refusal(call.id):
            self._calls.refused(call)
            end(exchange, refusal)
            return
        self.in_flight[call.id] = exchange
        self._calls.call(self, call, exchange)

    def _refusal(self, request_id: str | int) -> Failure | None:
        if request_id in self.in_flight:
            return Failure(None, RpcError("invalid_request", id=request_id).as_object())
        most = self._limits.max_in_flight
        if len(self.in_flight) >= most:
            return Failure(request_id, RpcError("limit", limit="max_in_flight", value=most).as_object())
        return None

    def _end_single(self, exchange: Exchange, response: Result | Failure) -> None:
        self._forget(exchange, response)
        self._answer(response)

    def _batch(self, batch: Batch) -> None:
        """Carry out the entries; the array of answers goes out when the last one ended."""
        answers = BatchAnswers(batch, self.send)

        def end(exchange: Exchange, response: Result | Failure) -> None:
            self._forget(exchange, response)
            answers.add(response)
            self._close_if_done()

        for entry in batch.entries:
            if refusal := entry_refusal(entry):
                if isinstance(entry, Call):
                    self._calls.refused(entry)
                answers.add(refusal)
            elif isinstance(entry, Call):
                self._call(entry, end)

    @property
    def open_requests(self) -> int:
        """Requests in flight."""
        return len(self.in_flight)

    @property
    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _forget(self, exchange: Exchange, response: Result | Failure) -> None:
        if isinstance(response, Result) and isinstance(response.result, Answer):
            self.tokens_served += response.result.usage.completion_tokens
        if self.in_flight.get(exchange.id) is exchange:
            del self.in_flight[exchange.id]

    def _answer(self, response: Result | Failure) -> None:
        self.send(encode_message(response))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._half_closed and not self.in_flight:
            self.close()

    def _refuse_all(self, error: RpcError) -> None:
        """Send one last error and close: what follows on this connection cannot be answered."""
        self.send(encode_message(Failure(None, error.as_object())))
        self.close()

    def _flush(self) -> None:
        if self._transport is None or not self._outgoing:
            return
        self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()
        waiting = self._transport.get_write_buffer_size()
        if waiting > self._limits.max_output_bytes:
            self._end_slow_streams()
        if waiting > _ABANDON_FACTOR * self._limits.max_output_bytes + self._limits.max_frame_bytes:
            self.abort()

    def _end_slow_streams(self) -> None:
        for exchange in list(self.in_flight.values()):
            if exchange.cancel is not None:
                exchange.cancel("slow_reader")

    def _watch_frame(self, *, restart: bool) -> None:
        """Time out a frame that was begun and does not end; an idle connection lives for ever."""
        if restart or not self._framer.pending:
            self._forget_frame()
        if self._framer.pending and self._frame_timer is None and not self._closing:
            seconds = self._limits.frame_timeout_ms / 1000
            self._frame_timer = asyncio.get_running_loop().call_later(seconds, self._frame_timed_out)

    def _frame_timed_out(self) -> None:
        self._refuse_all(RpcError("limit", limit="frame_timeout_ms", value=self._limits.frame_timeout_ms))

    def _forget_frame(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None
