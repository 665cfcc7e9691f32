"""One request of a connection until its terminal response."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct

from car_protocol.envelope import Failure, Id, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.infer import Chunk, Progress
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

    def chunk(self, text: str, tokens: list[int] | None) -> None:
        """Send one piece of a stream."""
        if not self._ended:
            params = Chunk(self.id, self._sequence, text, tokens if tokens is not None else UNSET)
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
