"""One connection without its I/O: frames for requests, and where the received frames belong."""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar

import msgspec

from car_client.errors import CardError, ContractBroken, DaemonUnavailable, from_object
from car_protocol.answer import Answer, Chunk
from car_protocol.capacity import Capacity
from car_protocol.envelope import NOT_JSON, Id, Incoming, Request, decode_incoming, encode_message
from car_protocol.errors import REASONS, ErrorObject, RpcError
from car_protocol.framing import LineFramer
from car_protocol.limits import MAX_FRAME_BYTES
from car_protocol.methods import CAPACITY_CHANGED, CHUNK, MODELS_PROGRESS, STATUS_CHANGED
from car_protocol.models import LoadProgress
from car_protocol.status import Status

T = TypeVar("T")
# An answer may be longer than a request: escapes make up to six bytes of one.
MAX_INCOMING_BYTES = 64 * 1024 * 1024
_UNREADABLE = {REASONS["parse_error"].code, REASONS["invalid_request"].code}


def _wake_nobody() -> None:
    """Who reads the socket itself looks at the exchange afterwards."""


def tell_nobody(_progress: LoadProgress) -> None:
    """Who asks for no progress hears of none."""


class Exchange:
    """One request, from its frame to its terminal response; `wake` is called at every change."""

    def __init__(
        self, call_id: int, frame: bytes, wake: Callable[[], None], loading: Callable[[LoadProgress], None]
    ) -> None:
        self.id = call_id
        self.frame = frame
        self._wake = wake
        # Called with how much of a model is loaded, where that was asked for.
        self.loading = loading
        # Mutable state: chunks not yet taken, how many came, and how it ended. The backlog is bounded by the
        # answer's length; reading goes on, since other requests share the connection.
        self.chunks: deque[Chunk] = deque()
        self.received = 0
        self.result: msgspec.Raw | None = None
        self.error: CardError | None = None
        self.ended = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to take yet."""
        return not (self.chunks or self.error or self.ended)

    def read(self, kind: type[T]) -> T:
        """Return the result of an ended exchange; raises its error."""
        if self.error:
            raise self.error
        assert self.result is not None
        return _read(self.result, kind)

    def read_stream(self) -> Answer:
        """Return the answer of an ended stream; raises ContractBroken where chunks are missing."""
        answer = self.read(Answer)
        if answer.chunks != self.received:
            raise ContractBroken(f"the stream has {answer.chunks} chunks, {self.received} came")
        return answer

    def add(self, chunk: Chunk) -> None:
        """Take one chunk in; a gap fails the exchange."""
        if self.error:
            return
        if chunk.seq == self.received:
            self.chunks.append(chunk)
            self.received += 1
        else:
            self.error = ContractBroken(f"chunk {chunk.seq} came where {self.received} was due")
        self._wake()

    def finish(self, message: Incoming) -> None:
        """Take the terminal response in."""
        if message.error:
            self.fail(from_object(message.error))
        elif message.result:
            self.result = message.result
            self.ended = True
            self._wake()
        else:
            self.fail(ContractBroken("a response has neither a result nor an error"))

    def fail(self, error: CardError) -> None:
        """End the exchange; the first error is the one that counts."""
        self.error = self.error or error
        self.ended = True
        self._wake()


class Session:
    """The requests of one connection, and the daemon's capacity as long as it lives."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._framer = LineFramer(MAX_INCOMING_BYTES)
        self._listeners = {
            CHUNK: self._chunk,
            CAPACITY_CHANGED: self._capacity_changed,
            STATUS_CHANGED: self._status_changed,
            MODELS_PROGRESS: self._models_progress,
        }
        # Called with every status that the daemon sends by itself, and with None at the connection's end; with the
        # milliseconds between two that each of them wants.
        self._watchers: dict[Callable[[Status | None], None], int] = {}
        # Mutable state: requests without a terminal response, the cached capacity, and why the connection
        # ended: what the daemon said last about no request in particular, and the error all others got.
        self._in_flight: dict[Id, Exchange] = {}
        self._greeting: Exchange | None = None
        self.capacity_info: Capacity | None = None
        self._refusal: CardError | None = None
        self._loss: CardError | None = None

    @property
    def capacity(self) -> int:
        """How many requests run at once: 1 until the daemon has answered."""
        return self.capacity_info.capacity if self.capacity_info else 1

    @property
    def greeted(self) -> bool:
        """Whether the daemon ever answered on this connection."""
        return self._greeting is not None and self._greeting.result is not None

    def greet(self, wake: Callable[[], None] = _wake_nobody) -> Exchange:
        """Begin the first exchange, which subscribes to the capacity."""
        self._greeting = self.begin("inference/capacity", {"subscribe": True}, wake)
        return self._greeting

    def begin(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        wake: Callable[[], None] = _wake_nobody,
        loading: Callable[[LoadProgress], None] = tell_nobody,
    ) -> Exchange:
        """Begin an exchange, whose frame is to be sent; raises LimitReached for too long a frame."""
        call_id = next(self._ids)
        frame = encode_message(Request("2.0", method, call_id, params))
        if len(frame) - 1 > self._max_frame_bytes:
            error = RpcError("limit", limit="max_frame_bytes", value=self._max_frame_bytes)
            raise from_object(error.as_object())
        exchange = Exchange(call_id, frame, wake, loading)
        if self._loss:
            exchange.fail(self._loss)
        else:
            self._in_flight[call_id] = exchange
        return exchange

    def watch(self, watcher: Callable[[Status | None], None], interval_ms: int) -> int:
        """Have statuses sent to one more; return the interval to subscribe with, the shortest that anybody wants."""
        self._watchers[watcher] = interval_ms
        return min(self._watchers.values())

    def unwatch(self, watcher: Callable[[Status | None], None]) -> int | None:
        """Send one no statuses any more; return the interval that the others want, None where there are none."""
        del self._watchers[watcher]
        return min(self._watchers.values(), default=None)

    def cancel(self, exchange: Exchange) -> bytes:
        """Return the frame that asks the daemon to end the exchange; empty where it has ended."""
        if exchange.ended:
            return b""
        return encode_message(Request("2.0", "$/cancelRequest", params={"id": exchange.id}))

    def receive(self, data: bytes) -> None:
        """Take received bytes in; raises ContractBroken, after which the connection is of no use."""
        for frame in self._framer.feed(data):
            self._route(_decode(frame))
        if self._framer.overflowed:
            raise ContractBroken(f"the daemon sent a frame of more than {MAX_INCOMING_BYTES} bytes")

    def lose(self, error: CardError | None = None) -> None:
        """The connection has ended: fail what is in flight and forget the capacity; later calls do nothing."""
        if self._loss:
            return
        self._loss = error or self._refusal or DaemonUnavailable("the connection to the daemon was lost")
        self.capacity_info = None
        in_flight = list(self._in_flight.values())
        self._in_flight.clear()
        for exchange in in_flight:
            exchange.fail(self._loss)
        for watcher in list(self._watchers):
            watcher(None)

    @property
    def loss(self) -> CardError | None:
        """Why the connection ended; None while it lives."""
        return self._loss

    @property
    def _max_frame_bytes(self) -> int:
        return self.capacity_info.limits.max_frame_bytes if self.capacity_info else MAX_FRAME_BYTES

    def _route(self, message: Incoming) -> None:
        if message.method is not None:
            if listener := self._listeners.get(message.method):
                listener(message.params)
        elif message.id is not None:
            self._answered(message.id, message)
        elif message.error:
            self._refused(message.error)

    def _refused(self, error: ErrorObject) -> None:
        """Take an error about no request by its id: of one that the daemon could not read, or the connection's last."""
        self._refusal = from_object(error)
        if error.code not in _UNREADABLE:
            return
        if len(self._in_flight) != 1:
            raise ContractBroken(f"the daemon could not read a request: {self._refusal}")
        _, exchange = self._in_flight.popitem()
        exchange.fail(self._refusal)
        self._refusal = None

    def _answered(self, call_id: Id, message: Incoming) -> None:
        exchange = self._in_flight.pop(call_id, None)
        if exchange is None:
            return
        if exchange is self._greeting and message.result:
            self.capacity_info = _read(message.result, Capacity)
        exchange.finish(message)

    def _chunk(self, params: msgspec.Raw) -> None:
        chunk = _read(params, Chunk)
        if exchange := self._in_flight.get(chunk.id):
            exchange.add(chunk)

    def _capacity_changed(self, params: msgspec.Raw) -> None:
        self.capacity_info = _read(params, Capacity)

    def _models_progress(self, params: msgspec.Raw) -> None:
        progress = _read(params, LoadProgress)
        if exchange := self._in_flight.get(progress.id):
            exchange.loading(progress)

    def _status_changed(self, params: msgspec.Raw) -> None:
        status = _read(params, Status)
        for watcher in list(self._watchers):
            watcher(status)


def _decode(frame: bytes) -> Incoming:
    try:
        return decode_incoming(frame)
    except NOT_JSON as error:
        raise ContractBroken("the daemon sent a frame that is no message") from error


def _read(text: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except NOT_JSON as error:
        raise ContractBroken(f"the daemon sent what is no {kind.__name__}") from error
