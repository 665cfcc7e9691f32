"""One connection without its I/O: requests become frames, and received frames reach the pending calls."""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar

import msgspec

from car_client.calls import Progress, ignore_progress
from car_client.errors import CardError, ConnectionLost, ProtocolError, from_object
from car_client.results import Answer, Capacity, Chunk, Status, joined
from car_protocol.envelope import NOT_JSON, Id, Incoming, Request, decode_incoming, encode_message
from car_protocol.errors import REASONS, ErrorObject, RpcError
from car_protocol.framing import LineFramer
from car_protocol.limits import MAX_FRAME_BYTES, MAX_IN_FLIGHT
from car_protocol.methods import CAPACITY_CHANGED, CHUNK, METHODS, MODELS_PROGRESS, STATUS_CHANGED
from car_protocol.models import LoadProgress

T = TypeVar("T")


def do_nothing() -> None:
    """Stand in for a callback if the socket's reader looks at the call by itself."""


class PendingCall:
    """One request, from its frame to its terminal response; `wake` is called at every change."""

    def __init__(
        self,
        call_id: int,
        frame: bytes,
        wake: Callable[[], None] = do_nothing,
        on_progress: Progress = ignore_progress,
        *,
        counts: bool = False,
    ) -> None:
        self.id = call_id
        self.frame = frame
        self.counts = counts  # towards the daemon's bound, as no call does that is answered at once
        self.on_progress = on_progress
        self._wake = wake
        # Bounded by the answer's length: reading goes on while it grows, because other calls share the connection.
        self.chunks: deque[Chunk] = deque()  # received and not yet given to the caller
        self._received: list[Chunk] = []
        self._result: msgspec.Raw | None = None
        self._error: CardError | None = None
        self.ended = False

    @property
    def idle(self) -> bool:
        """True while there is no chunk to give and no end."""
        return not (self.chunks or self._error or self.ended)

    @property
    def received(self) -> int:
        """The number of chunks that came."""
        return len(self._received)

    @property
    def succeeded(self) -> bool:
        """True once a result came."""
        return self._result is not None

    def read(self, kind: type[T]) -> T:
        """Return the result of an ended call; raises its error."""
        if self._error:
            raise self._error
        assert self._result is not None
        return decode(self._result, kind)

    def read_stream(self) -> Answer:
        """Return the answer of an ended stream with the contents of its chunks; raises ProtocolError on a gap."""
        answer = self.read(Answer)
        if answer.chunks != self.received:
            raise ProtocolError(f"the stream has {answer.chunks} chunks, {self.received} came")
        return joined(answer, self._received)

    def add(self, chunk: Chunk) -> None:
        """Append a chunk; a gap fails the call."""
        if self._error:
            return
        due = len(self._received)
        if chunk.seq == due:
            self.chunks.append(chunk)
            self._received.append(chunk)
        else:
            self._error = ProtocolError(f"chunk {chunk.seq} of a stream came in place of chunk {due}")
        self._wake()

    def finish(self, message: Incoming) -> None:
        """End the call with its terminal response."""
        if message.error:
            self.fail(from_object(message.error))
        elif message.result:
            self._result = message.result
            self.ended = True
            self._wake()
        else:
            self.fail(ProtocolError("a response has neither a result nor an error"))

    def fail(self, error: CardError) -> None:
        """End the call with an error; of several the first counts."""
        self._error = self._error or error
        self.ended = True
        self._wake()


def decode(text: msgspec.Raw, kind: type[T]) -> T:
    """Return JSON text as an object; raises ProtocolError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except NOT_JSON as error:
        raise ProtocolError(f"the daemon sent JSON that is not a valid {kind.__name__}") from error


# An answer may be longer than a request: escapes make up to six bytes of one.
MAX_INCOMING_BYTES = 64 * 1024 * 1024
_UNREADABLE = {REASONS["parse_error"].code, REASONS["invalid_request"].code}


class ProtocolSession:
    """The calls of one connection, and the daemon's capacity while it lives."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._framer = LineFramer(MAX_INCOMING_BYTES)
        self._listeners = {
            CHUNK: self._on_chunk,
            CAPACITY_CHANGED: self._on_capacity,
            STATUS_CHANGED: self._on_status,
            MODELS_PROGRESS: self._on_progress,
        }
        # Each with the milliseconds between two statuses that it needs; called with None when the connection ends.
        self._watchers: dict[Callable[[Status | None], None], int] = {}
        self._in_flight: dict[Id, PendingCall] = {}
        self._unsent: dict[Id, PendingCall] = {}  # of these, the oldest first, until `due` gave their frames out
        self._greeting: PendingCall | None = None
        self._capacity: Capacity | None = None
        self._refusal: CardError | None = None  # the last error that names no request
        self._loss: CardError | None = None

    @property
    def capacity(self) -> int:
        """The number of requests that run at once; 1 until the daemon has answered."""
        return self._capacity.capacity if self._capacity else 1

    @property
    def greeted(self) -> bool:
        """True once the daemon answered on this connection."""
        return self._greeting is not None and self._greeting.succeeded

    @property
    def loss(self) -> CardError | None:
        """The reason for which the connection ended; None while it lives."""
        return self._loss

    def greet(self) -> PendingCall:
        """Begin the first call, which subscribes to the capacity."""
        self._greeting = self.begin("inference/capacity", {"subscribe": True})
        return self._greeting

    def begin(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        wake: Callable[[], None] = do_nothing,
        on_progress: Progress = ignore_progress,
    ) -> PendingCall:
        """Begin a call, which `due` sends in its turn; raises LimitReached for too long a frame."""
        call_id = next(self._ids)
        frame = encode_message(Request("2.0", method, call_id, params))
        bound = self._capacity.limits.max_frame_bytes if self._capacity else MAX_FRAME_BYTES
        if len(frame) - 1 > bound:
            raise from_object(RpcError("limit", limit="max_frame_bytes", value=bound).as_object())
        counts = method in METHODS and METHODS[method].waits
        call = PendingCall(call_id, frame, wake, on_progress, counts=counts)
        if self._loss:
            call.fail(self._loss)
        else:
            self._in_flight[call_id] = self._unsent[call_id] = call
        return call

    def due(self) -> bytes:
        """Return the frames to send now: the daemon refuses more calls than `max_in_flight`, so others wait here."""
        if not self._unsent:
            return b""
        bound = self._capacity.limits.max_in_flight if self._capacity else MAX_IN_FLIGHT
        sent = self._in_flight.keys() - self._unsent.keys()
        free = bound - sum(self._in_flight[call_id].counts for call_id in sent)
        frames = []
        for call in list(self._unsent.values()):
            if free > 0 or not call.counts:
                free -= call.counts
                frames.append(self._unsent.pop(call.id).frame)
        return b"".join(frames)

    def cancel(self, call: PendingCall) -> bytes:
        """Return the frame that cancels the call at the daemon; a call that was not sent ends here in the same way."""
        if self._unsent.pop(call.id, None):
            del self._in_flight[call.id]
            call.fail(from_object(RpcError("cancelled", started=False).as_object()))
        return b"" if call.ended else encode_message(Request("2.0", "$/cancelRequest", params={"id": call.id}))

    def watch(self, watcher: Callable[[Status | None], None], interval_ms: int) -> int:
        """Pass statuses to one more watcher; return the interval to subscribe with, the shortest of all watchers'."""
        self._watchers[watcher] = interval_ms
        return min(self._watchers.values())

    def unwatch(self, watcher: Callable[[Status | None], None]) -> int | None:
        """Pass no more statuses to a watcher; return the interval of the other watchers, None if there are none."""
        del self._watchers[watcher]
        return min(self._watchers.values(), default=None)

    def receive(self, data: bytes) -> None:
        """Route received bytes; raises ProtocolError, after which the connection has to be closed."""
        for frame in self._framer.feed(data):
            try:
                message = decode_incoming(frame)
            except NOT_JSON as error:
                raise ProtocolError("the daemon sent a frame that is not a JSON-RPC message") from error
            self._route(message)
        if self._framer.overflowed:
            raise ProtocolError(f"the daemon sent a frame of more than {MAX_INCOMING_BYTES} bytes")

    def lose(self, error: CardError | None = None) -> None:
        """End the session: fail the calls in flight and forget the capacity; later calls of this do nothing."""
        if self._loss:
            return
        self._loss = error or self._refusal or ConnectionLost("the connection to the daemon was lost")
        self._capacity = None
        in_flight = list(self._in_flight.values())
        self._in_flight.clear()
        self._unsent.clear()
        for call in in_flight:
            call.fail(self._loss)
        for watcher in list(self._watchers):
            watcher(None)

    def _route(self, message: Incoming) -> None:
        if message.method is not None:
            if listener := self._listeners.get(message.method):
                listener(message.params)
        elif message.id is not None:
            if call := self._in_flight.pop(message.id, None):
                if call is self._greeting and message.result:
                    self._capacity = decode(message.result, Capacity)
                call.finish(message)
        elif message.error:
            self._on_refusal(message.error)

    def _on_refusal(self, error: ErrorObject) -> None:
        """Fail the call that the daemon could not read; keep any other error for the end of the connection."""
        self._refusal = from_object(error)
        if error.code not in _UNREADABLE:
            return
        if len(self._in_flight) != 1:
            raise ProtocolError(f"the daemon could not read a request: {self._refusal}")
        _, call = self._in_flight.popitem()
        call.fail(self._refusal)
        self._refusal = None

    def _on_chunk(self, params: msgspec.Raw) -> None:
        chunk = decode(params, Chunk)
        if call := self._in_flight.get(chunk.id):
            call.add(chunk)

    def _on_capacity(self, params: msgspec.Raw) -> None:
        self._capacity = decode(params, Capacity)

    def _on_progress(self, params: msgspec.Raw) -> None:
        progress = decode(params, LoadProgress)
        if call := self._in_flight.get(progress.id):
            call.on_progress(progress)

    def _on_status(self, params: msgspec.Raw) -> None:
        status = decode(params, Status)
        for watcher in list(self._watchers):
            watcher(status)
