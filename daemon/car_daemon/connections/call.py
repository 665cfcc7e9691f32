"""One request of a connection from its beginning to its terminal response."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from car_daemon.connections.outbound import OutboundBuffer
from car_daemon.ipc.frames import Extra
from car_protocol.answer import Answer, Chunk, Progress
from car_protocol.envelope import Failure, Id, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.methods import CHUNK, PROGRESS
from car_protocol.trace import Trace

_encode = msgspec.json.Encoder().encode


class Work(Struct, frozen=True):
    """The work behind a request: how to cancel it for a reason and, where it supports that, how to pause it."""

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
    trace: Trace | None = None
    work: Work | None = None  # None while nothing runs
    completion_tokens: int = 0  # of the answer, once ended
    _ended: bool = False
    _chunks_sent: int = 0
    _deferred: "MergedChunk | None" = None  # chunks produced while the client does not read

    @property
    def chunks(self) -> int:
        """The number of chunks that carry all text produced so far."""
        return self._chunks_sent + (self._deferred is not None)

    def cancel(self, reason: str) -> None:
        """Cancel the work, if any runs."""
        if self.work is not None:
            self.work.cancel(reason)

    def chunk(self, text: str, extra: Extra | None) -> None:
        """Send one piece of a stream, or merge it with those that wait while the client does not read."""
        if self._ended:
            return
        if self._outbound.blocked:
            self._deferred = self._deferred or MergedChunk()
            self._outbound.defer(self, self._deferred.add(text, extra))
        else:
            self._send_chunk(text, extra)

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
            self._deferred = None
        self._finish(Failure(self.id, error.as_object()))

    # Flow control of the outbound buffer.

    def send_deferred(self) -> None:
        """Send the deferred chunks as one."""
        if self._deferred is not None:
            merged, self._deferred = self._deferred, None
            self._send_chunk(merged.text, merged.extra)

    def pause(self) -> None:
        """Pause the work until `unpause`, where it supports that."""
        if self.work is not None and self.work.pause is not None:
            self.work.pause()

    def unpause(self) -> None:
        """Continue the work after `pause`."""
        if self.work is not None and self.work.unpause is not None:
            self.work.unpause()

    def _send_chunk(self, text: str, extra: Extra | None) -> None:
        chunk = Chunk(id=self.id, seq=self._chunks_sent, text=text)
        if extra is not None:
            chunk = Chunk(
                id=self.id,
                seq=self._chunks_sent,
                text=text,
                reasoning=extra.reasoning or UNSET,
                tool_calls=extra.tool_calls or UNSET,
                tokens=extra.tokens or UNSET,
                logprobs=extra.logprobs or UNSET,
            )
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
        self._end(self, frame)


class MergedChunk:
    """Pieces of a stream as one: their texts joined, and their extras in order."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._extras: list[Extra] = []

    def add(self, text: str, extra: Extra | None) -> int:
        """Add a piece; return roughly how many bytes it has on the wire."""
        self._texts.append(text)
        if extra is None:
            return len(_encode(text))
        self._extras.append(extra)
        return len(_encode((text, extra)))

    @property
    def text(self) -> str:
        """All texts joined."""
        return "".join(self._texts)

    @property
    def extra(self) -> Extra | None:
        """All extras as one; None where no piece has any."""
        if not self._extras:
            return None
        return Extra(
            tokens=[token for extra in self._extras for token in extra.tokens],
            logprobs=[logprob for extra in self._extras for logprob in extra.logprobs],
            reasoning="".join(extra.reasoning for extra in self._extras),
            tool_calls=[call for extra in self._extras for call in extra.tool_calls],
        )
