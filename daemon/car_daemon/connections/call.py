"""One request of a connection from its beginning to its terminal response."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from car_base.ipc.frames import Extra
from car_daemon.connections.answer_pieces import AnswerPieces
from car_daemon.connections.outbound import OutboundBuffer
from car_daemon.people.identity import Identity
from car_protocol.answer import Answer, Chunk, Progress
from car_protocol.envelope import Failure, Id, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.meta import Trace
from car_protocol.methods import CHUNK, PROGRESS


class CallWork(Struct, frozen=True):
    """The work behind a request: how to cancel it for a reason and, if it supports that, how to pause it."""

    cancel: Callable[[str], None]
    pause: Callable[[], None] | None = None
    unpause: Callable[[], None] | None = None


class RpcCall(Struct, eq=False):
    """Exactly one of `result` and `error` ends a call; later output is dropped. `size` is in bytes of params.

    `_end` receives the encoded response.
    """

    id: Id
    size: int
    _end: Callable[["RpcCall", bytes], None]
    _outbound: OutboundBuffer
    identity: Identity | None = None  # set before it is carried out
    background: bool = False  # whatever class it names
    trace: Trace | None = None
    on_end: Callable[[], None] | None = None  # called once, when the call has its response
    work: CallWork | None = None  # None while nothing runs
    completion_tokens: int = 0  # of the answer, once ended
    _ended: bool = False
    _chunks_sent: int = 0
    # Produced while the client does not read, by the index of the answer.
    _deferred: dict[int | None, AnswerPieces] = {}

    @property
    def chunks(self) -> int:
        """The number of chunks that carry all text produced so far."""
        return self._chunks_sent + sum(pieces.count for pieces in self._deferred.values())

    def cancel(self, reason: str) -> None:
        """Cancel the work, if any runs."""
        if self.work is not None:
            self.work.cancel(reason)

    def chunk(self, text: str, extra: Extra | None, index: int | None = None) -> None:
        """Send one piece of an answer, or merge it with the waiting pieces while the client does not read."""
        if self._ended:
            return
        if self._outbound.blocked:
            self._defer(text, extra, index)
        elif extra is None:
            self._send_chunk(Chunk(id=self.id, seq=self._chunks_sent, index=index, text=text))
        else:
            pieces = AnswerPieces()
            pieces.add(text, extra)
            self._send_pieces(pieces, index)

    def progress(self, params: Progress) -> None:
        """Send a progress notification."""
        if not self._ended:
            self._outbound.send(encode_message(Notification(PROGRESS, params)))

    def result(self, result: Struct | dict[str, Any]) -> None:
        """Send the terminal response."""
        if isinstance(result, Answer):
            self.completion_tokens = result.usage.completion_tokens
        self._finish(Result(self.id, result))

    def error(self, error: RpcError) -> None:
        """Send the terminal error; a slow reader loses its deferred chunks."""
        if error.reason == "slow_reader":
            self._deferred.clear()
        self._finish(Failure(self.id, error.as_object()))

    # Flow control of the outbound buffer.

    def send_deferred(self) -> None:
        """Send the deferred pieces in as few chunks as their order allows."""
        for index, pieces in self._deferred.items():
            self._send_pieces(pieces, index)
        self._deferred.clear()

    def pause(self) -> None:
        """Pause the work until `unpause`, if it supports that."""
        if self.work is not None and self.work.pause is not None:
            self.work.pause()

    def unpause(self) -> None:
        """Continue the work after `pause`."""
        if self.work is not None and self.work.unpause is not None:
            self.work.unpause()

    def _defer(self, text: str, extra: Extra | None, index: int | None) -> None:
        if index not in self._deferred:
            self._deferred[index] = AnswerPieces()
            if self._outbound.deferred.pauses(self):
                # Of several answers one has begun since the others were paused.
                self.pause()
        self._outbound.defer(self, self._deferred[index].add(text, extra))

    def _send_pieces(self, pieces: AnswerPieces, index: int | None) -> None:
        for chunk in pieces.chunks(self.id, self._chunks_sent, index):
            self._send_chunk(chunk)

    def _send_chunk(self, chunk: Chunk) -> None:
        self._chunks_sent += 1
        self._outbound.send(encode_message(Notification(CHUNK, chunk)))

    def _finish(self, response: Result | Failure) -> None:
        if self._ended:
            return
        # A response that cannot be encoded raises here, before anything of it is sent, so that an error still may be.
        frame = encode_message(response)
        if self._outbound.blocked:
            self.send_deferred()
            self._outbound.deferred.forget(self)
        self._ended = True
        if self.on_end is not None:
            self.on_end()
        self._end(self, frame)
