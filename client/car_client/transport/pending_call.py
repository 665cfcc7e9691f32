"""One call in flight: its chunks so far, and its end."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from car_client.calls import Progress, ignore_progress
from car_client.errors import CardError, ProtocolError, from_object
from car_client.results import Answer, Chunk, joined
from car_protocol.envelope import NOT_JSON, Incoming

T = TypeVar("T")


def do_nothing() -> None:
    """Stand in for a callback where the socket's reader looks at the call by itself."""


class PendingCall:
    """One request, from its frame to its terminal response; `wake` is called at every change."""

    def __init__(
        self,
        call_id: int,
        frame: bytes,
        wake: Callable[[], None] = do_nothing,
        on_progress: Progress = ignore_progress,
    ) -> None:
        self.id = call_id
        self.frame = frame
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
