"""One request of a connection until its terminal response."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct

from car_daemon.engine.frames import Extra
from car_protocol.answer import Chunk, Progress
from car_protocol.envelope import Failure, Id, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.methods import CHUNK, PROGRESS


class Exchange:
    """Exactly one of `result` and `error` ends it; what comes after that is dropped. `size` is in bytes of params."""

    def __init__(
        self,
        request_id: Id,
        size: int,
        end: Callable[["Exchange", Result | Failure], None],
        send: Callable[[bytes], None],
    ) -> None:
        self.id = request_id
        self.size = size
        self._end = end
        self._send = send
        # Mutable state: whether it ended, how to cancel what runs for it, chunks and tokens sent.
        self._ended = False
        self.cancel: Callable[[str], None] | None = None
        self._sequence = 0

    def chunk(self, text: str, extra: Extra | None) -> None:
        """Send one piece of a stream."""
        if not self._ended:
            params = _chunk(self.id, self._sequence, text, extra)
            self._sequence += 1
            self._send(encode_message(Notification(CHUNK, params)))

    def progress(self, params: Progress) -> None:
        """Send how far it is."""
        if not self._ended:
            self._send(encode_message(Notification(PROGRESS, params)))

    def result(self, result: Struct | dict[str, Any]) -> None:
        """Send the terminal response."""
        self._finish(Result(self.id, result))

    def error(self, error: RpcError) -> None:
        """Send the terminal error."""
        self._finish(Failure(self.id, error.as_object()))

    def _finish(self, response: Result | Failure) -> None:
        if not self._ended:
            self._ended = True
            self._end(self, response)


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
