"""One connected client: frames in, dispatch, one writer out."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import structlog
from msgspec import Struct

from car_daemon import faults
from car_daemon.batch import Batches, refusal_in_batch
from car_daemon.exchange import Exchange
from car_daemon.hangup import HangupWatcher
from car_daemon.held import HeldBytes, Share
from car_daemon.intake import Intake
from car_daemon.outbox import Outbox
from car_daemon.peer import Peer
from car_daemon.periodic import Periodic
from car_daemon.turns import Turns
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
from car_protocol.limits import Limits

log = structlog.get_logger()


class Calls(Protocol):
    """What a connection hands its calls to."""

    def call(self, connection: "Connection", call: Call, exchange: Exchange) -> None:
        """Carry out a request; the exchange is ended now or later."""
        ...

    def notify(self, connection: "Connection", call: Call) -> None:
        """Carry out a notification."""
        ...

    def waits(self, call: Call) -> bool:
        """Return whether it may be answered later than at once."""
        ...

    def refused(self, call: Call) -> None:
        """Hear of a request that the connection itself refused."""
        ...


class Surroundings(Struct, frozen=True):
    """What all connections of a daemon share; `lost` hears of a connection that is gone."""

    calls: Calls
    limits: Limits
    turns: Turns
    hangups: HangupWatcher
    held: HeldBytes
    lost: Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """Frames are carried out in order, in turns with other connections; the answers of a turn go out together."""

    def __init__(self, number: int, peer: Peer, surroundings: Surroundings) -> None:
        self.number = number
        self.peer = peer
        self._calls = surroundings.calls
        self._limits = surroundings.limits
        self._turns = surroundings.turns
        self._hangups = surroundings.hangups
        self._held = surroundings.held
        self._lost = surroundings.lost
        self._intake = Intake(self._limits, self._frame_timed_out, self._share)
        self._outbox = Outbox(self._limits, self._share)
        self._batches = Batches(self._send, self._share)
        # Mutable state: the transport and its descriptor, whether reading waits for frames to be carried out, requests
        # in flight by id, whether the peer has closed its side, what it subscribed to, and what the status shows.
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._paused = False
        self.in_flight: dict[str | int, Exchange] = {}
        self._half_closed = False
        self.subscriptions: set[str] = set()
        self._status: Periodic | None = None
        self.label: str | None = None
        self.tokens_served = 0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are no subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._outbox.open(transport)

    def data_received(self, data: bytes) -> None:
        """Cut frames; the first is carried out at once, the others in turns."""
        others = len(self._intake) > 0
        self._intake.feed(data)
        if not others:
            # What is answered at once need not wait for the end of this turn of the loop.
            self._outbox.gather()
            if self.work():
                self._turns.join(self)
            self._outbox.flush()
        self._pause_if_full()

    def eof_received(self) -> bool:
        """Finish what is in flight after a half-close; a hang-up after it cancels."""
        self._half_closed = True
        self._intake.stop_timer()
        if self._intake or self.in_flight:
            self._hangups.watch(self._descriptor, self.abort)
        else:
            self.close()
        return True

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        self._outbox.block()

    def resume_writing(self) -> None:
        """The client has read."""
        self._outbox.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel everything that ran for this client."""
        self._transport = None
        self.repeat(None)
        self._let_go()
        self._hangups.forget(self._descriptor)
        self._cancel_all()
        self._lost(self)

    # What the daemon calls.

    def work(self) -> bool:
        """Carry out the next frame; tell whether more wait."""
        if self._intake:
            try:
                self._receive(self._intake.take())
            except Exception as error:  # noqa: BLE001 - what goes wrong here ends this connection, not the others
                faults.report("connection.failed", error)
                self.abort()
        if self._closing:
            self._intake.drop()
        elif not self._intake:
            self._all_done()
        return bool(self._intake)

    def notify(self, method: str, params: Struct) -> None:
        """Send a notification."""
        self._outbox.send(encode_message(Notification(method, params)))

    def close(self) -> None:
        """Write what is to be written, then close."""
        self._outbox.close()
        if self._transport is not None:
            self._intake.drop()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits to be written is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def repeat(self, status: Periodic | None) -> None:
        """Have the status told like this until the connection ends, in place of what told it before; None: no more."""
        if self._status is not None:
            self._status.stop()
        self._status = status
        if status is not None:
            status.start()

    @property
    def blocked(self) -> bool:
        """Whether the client has not read what was sent."""
        return self._outbox.blocked

    @property
    def open_requests(self) -> int:
        """Requests in flight."""
        return len(self.in_flight)

    # Frames in turns.

    def _pause_if_full(self) -> None:
        if self._intake.full and not self._paused and self._transport is not None:
            self._paused = True
            self._intake.stop_timer()
            self._transport.pause_reading()

    def _all_done(self) -> None:
        """Go on reading, or end where nothing more can be read."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
            self._intake.start_timer()
        if self._intake.overflowed:
            self._refuse_all(RpcError("limit", limit="max_frame_bytes", value=self._limits.max_frame_bytes))
        else:
            self._close_if_done()

    # Requests.

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

    def _call(
        self, call: Call, end: Callable[[Exchange, Result | Failure], None], barred: Failure | None = None
    ) -> None:
        if call.id is None:
            self._calls.notify(self, call)
            return
        exchange = Exchange(call.id, len(call.params), end, self._outbox)
        if refusal := self._refusal(call, call.id) or barred:
            self._calls.refused(call)
            end(exchange, refusal)
            return
        self.in_flight[call.id] = exchange
        self._calls.call(self, call, exchange)

    def _refusal(self, call: Call, request_id: str | int) -> Failure | None:
        if request_id in self.in_flight or request_id in self._batches.ids:
            return Failure(None, RpcError("invalid_request", id=request_id).as_object())
        most = self._limits.max_in_flight
        if len(self.in_flight) >= most and self._calls.waits(call):
            return Failure(request_id, RpcError("limit", limit="max_in_flight", value=most).as_object())
        return None

    def _end_single(self, exchange: Exchange, response: Result | Failure) -> None:
        self._forget(exchange, response)
        self._answer(response)

    def _batch(self, batch: Batch) -> None:
        """Carry out the entries; the array of answers goes out when the last one ended."""
        answer = self._batches.begin(batch)

        def end(exchange: Exchange, response: Result | Failure) -> None:
            self._forget(exchange, response)
            answer(response)

        for entry in batch.entries:
            if self._closing:
                return
            if isinstance(entry, Call):
                self._call(entry, end, refusal_in_batch(entry))
            else:
                answer(Failure(None, entry.as_object()))

    def _forget(self, exchange: Exchange, response: Result | Failure) -> None:
        if isinstance(response, Result) and isinstance(response.result, Answer):
            self.tokens_served += response.result.usage.completion_tokens
        if self.in_flight.get(exchange.id) is exchange:
            del self.in_flight[exchange.id]

    def _cancel_all(self) -> None:
        for exchange in list(self.in_flight.values()):
            exchange.cancel("cancelled")

    # The end.

    def _share(self, measure: Callable[[], int]) -> Share:
        return Share(self._held, self.peer, measure, self._drop)

    def _drop(self) -> None:
        """End a client for which too much is held."""
        log.warning("connection.dropped", uid=self.peer.uid, pid=self.peer.pid)
        self._let_go()
        self.abort()

    def _let_go(self) -> None:
        """Hold nothing more for this client."""
        self._intake.drop()
        self._outbox.discard()
        self._batches.drop()

    @property
    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _answer(self, response: Result | Failure) -> None:
        self._send(encode_message(response))

    def _send(self, answer: bytes) -> None:
        """Send a whole answer, which may be the last one."""
        self._outbox.send(answer)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._half_closed and not self.in_flight and not self._intake:
            self.close()

    def _refuse_all(self, error: RpcError) -> None:
        """Answer what is in flight, send one last error and close: what follows here cannot be answered."""
        self._cancel_all()
        self._outbox.send(encode_message(Failure(None, error.as_object())))
        self.close()

    def _frame_timed_out(self) -> None:
        self._refuse_all(RpcError("limit", limit="frame_timeout_ms", value=self._limits.frame_timeout_ms))
