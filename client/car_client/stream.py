"""An answer that comes in pieces, for code without an event loop."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from car_client.session import Exchange
from car_client.wire import Wire
from car_protocol.answer import Answer, Chunk


class Stream(Iterator[Chunk]):
    """Chunks of one answer. Leaving it early cancels the request; `with` makes the moment certain."""

    def __init__(self, begin: Callable[[], tuple[Wire, Exchange]]) -> None:
        self._begin = begin
        # Mutable state: the request once it was begun, whether it was cancelled before, whether it is over here, and
        # the answer at the end.
        self._request: tuple[Wire, Exchange] | None = None
        self._cancelled = False
        self._over = False
        self.answer: Answer | None = None

    def __next__(self) -> Chunk:
        if self._over:
            raise StopIteration
        try:
            wire, exchange = self._started()
            wire.wait(exchange)
            if exchange.chunks:
                return exchange.chunks.popleft()
            self.answer = exchange.read_stream()
        except BaseException:
            self.close()
            raise
        self._over = True
        raise StopIteration

    def close(self) -> None:
        """Cancel the request if it still runs; the iteration is over."""
        self._over = True
        self.cancel()

    def cancel(self) -> None:
        """Ask the daemon to end the request: what it sent before still comes, then RequestCancelled."""
        self._cancelled = True
        if self._request is not None:
            wire, exchange = self._request
            wire.cancel(exchange)

    def __enter__(self) -> Self:
        try:
            self._started()
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

    def _started(self) -> tuple[Wire, Exchange]:
        if self._request is None:
            wire, exchange = self._request = self._begin()
            wire.send(exchange.frame)
            if self._cancelled:
                wire.cancel(exchange)
        return self._request
