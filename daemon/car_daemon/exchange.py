"""One request of a connection until its terminal response."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct

from car_daemon.engine.frames import Extra
from car_daemon.merging import MergedPiece
from car_daemon.outbox import Outbox
from car_protocol.answer import Chunk, Progress
from car_protocol.envelope import Failure, Id, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.methods import CHUNK, PROGRESS
from car_protocol.trace import Trace


class Work(Struct, frozen=True):
    """How to end what runs for a request, by a reason; how to set it aside, and go on, where that can be done."""

    cancel: Callable[[str], None]
    hold: Callable[[], None] | None = None
    release: Callable[[], None] | None = None


class Exchange:
    """Exactly one of `result` and `error` ends it; what comes after that is dropped. `size` is in bytes of params."""

    def __init__(
        self,
        request_id: Id,
        size: int,
        end: Callable[["Exchange", Result | Failure], None],
        outbox: Outbox,
    ) -> None:
        self.id = request_id
        self.size = size
        self._end = end
        self._outbox = outbox
        # Mutable state: the trace it belongs to, what runs for it, whether it ended, how many chunks were sent, and
        # what is held back.
        self.trace: Trace | None = None
        self.work: Work | None = None
        self._ended = False
        self._sent = 0
        self._held = MergedPiece()

    @property
    def chunks(self) -> int:
        """How many chunks the client gets of what was produced so far."""
        return self._sent if self._held.empty else self._sent + 1

    def cancel(self, reason: str) -> None:
        """End what runs for it, if anything does."""
        if self.work is not None:
            self.work.cancel(reason)

    def chunk(self, text: str, extra: Extra | None) -> None:
        """Send one piece of a stream, or merge it with what waits for a client that does not read."""
        if self._ended:
            return
        if self._outbox.blocked:
            self._outbox.hold(self, self._held.add(text, extra))
        else:
            self._send_chunk(text, extra)

    def progress(self, params: Progress) -> None:
        """Send how far it is."""
        if not self._ended:
            self._outbox.send(encode_message(Notification(PROGRESS, params)))

    def result(self, result: Struct | dict[str, Any]) -> None:
        """Send the terminal response."""
        self._finish(Result(self.id, result))

    def error(self, error: RpcError) -> None:
        """Send the terminal error."""
        if error.reason == "slow_reader":
            self._held = MergedPiece()
        self._finish(Failure(self.id, error.as_object()))

    # What the outbox wants of a stream.

    def send_held(self) -> None:
        """Send what was held back as one chunk."""
        if not self._held.empty:
            self._send_chunk(*self._held.take())

    def park(self) -> None:
        """Have nothing more produced until `resume`."""
        if self.work is not None and self.work.hold is not None:
            self.work.hold()

    def resume(self) -> None:
        """Go on after `park`."""
        if self.work is not None and self.work.release is not None:
            self.work.release()

    def give_up(self) -> None:
        """End: the client does not read."""
        self.cancel("slow_reader")

    def _send_chunk(self, text: str, extra: Extra | None) -> None:
        params = _chunk(self.id, self._sent, text, extra)
        self._sent += 1
        self._outbox.send(encode_message(Notification(CHUNK, params)))

    def _finish(self, response: Result | Failure) -> None:
        if not self._ended:
            self.send_held()
            self._ended = True
            self._outbox.forget(self)
            try:
                self._end(self, response)
            except Exception:
                # Nothing of it was sent, so that an error may be.
                self._ended = False
                raise


def _chunk(request_id: Id, sequence: int, text: str, extra: Extra | None) -> Chunk:
    if extra is None:
        return Chunk(id=request_id, seq=sequence, text=text)
    return Chunk(
        id=request_id,
        seq=sequence,
        text=text,
        reasoning=extra.reasoning or UNSET,
        tool_calls=extra.tool_calls or UNSET,
        tokens=extra.tokens or UNSET,
        logprobs=extra.logprobs or UNSET,
    )
