"""A streamed answer, for blocking code: `make docs` writes it from the asynchronous one."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from car_client.errors import CardError
from car_client.results import Answer, Chunk
from car_client.retry import Deadline, Retries
from car_client.transport.blocking_connection import BlockingReply, Pause


class Stream(Iterator[Chunk]):
    """The chunks of one answer, as an iterator. Leaving it early cancels the request; `with` does so at once.

    After the last chunk `answer` is the whole answer, its text included; it is None before.
    """

    def __init__(
        self,
        begin: Callable[[Deadline], BlockingReply],
        retries: Retries,
        timeout_s: float | None,
        pause: Pause,
    ) -> None:
        self._begin = begin
        self._retries = retries
        self._timeout_s = timeout_s
        self._pause = pause
        self.answer: Answer | None = None
        self._reply: BlockingReply | None = None  # None until the request is sent, and between attempts
        self._cancelled = False
        self._over = False

    def __next__(self) -> Chunk:
        if self._over:
            raise StopIteration
        if self._reply is not None and self._reply.call.chunks:
            return self._reply.call.chunks.popleft()  # the usual case costs little
        try:
            chunk = self._next_chunk(Deadline(self._timeout_s))
        except BaseException:
            self.close()
            raise
        if chunk is None:
            self._over = True
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Cancel the request if it still runs, and end the iteration."""
        self._over = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the request at the daemon: chunks that it sent before still come, then RequestCancelled."""
        self._cancelled = True
        if self._reply is not None:
            self._reply.cancel()

    def __enter__(self) -> Self:
        try:
            self._started(Deadline(self._timeout_s))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._over:
            self.close()

    def _next_chunk(self, deadline: Deadline) -> Chunk | None:
        """Return the next chunk, None at the end; until the first one came the request may be sent again."""
        while True:
            try:
                reply = self._started(deadline)
                reply.wait(deadline)
                if self._over:
                    return None  # closed while this waited
                if reply.call.chunks:
                    return reply.call.chunks.popleft()
                self.answer = reply.call.read_stream()
            except CardError as error:
                if self._cancelled or (self._reply is not None and self._reply.call.received):
                    raise
                pause_s = self._retries.pause_s(error, deadline)
            else:
                return None
            self._reply = None
            self._pause(pause_s)

    def _started(self, deadline: Deadline) -> BlockingReply:
        if self._reply is None:
            return self._send(deadline)
        return self._reply

    def _send(self, deadline: Deadline) -> BlockingReply:
        self._reply = reply = self._begin(deadline)
        reply.send(deadline)
        if self._cancelled:
            reply.cancel()
        return reply
