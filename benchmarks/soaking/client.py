"""A raw connection that sees to it that every request is answered exactly once, and every stream without gaps."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from benchmarks.soaking.books import Books, Json

PATIENCE_S = 90.0
_LINE_BYTES = 1 << 24


@dataclass
class Request:
    """One request, and what came of it; `begun` is set by its first chunk."""

    id: int
    method: str
    answer: asyncio.Future[Json]
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    text: str = ""
    chunks: int = 0


class Peer:
    """One connection. `leave` goes away for good; `refused` holds what the daemon said to no request."""

    def __init__(self, books: Books, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.books = books
        self._reader = reader
        self._writer = writer
        self.refused: list[Json] = []
        # Mutable state: requests without an answer by id, the id given last, and whether an end of it is expected.
        self._open: dict[int, Request] = {}
        self._last = 0
        self._ends = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, socket: Path, books: Books) -> Self:
        """Return a new connection."""
        return cls(books, *await asyncio.open_unix_connection(str(socket), limit=_LINE_BYTES))

    def send(self, method: str, params: Json | None = None) -> Request:
        """Send a request."""
        self._last += 1
        request = Request(self._last, method, asyncio.get_running_loop().create_future())
        self._open[request.id] = request
        self.books.send(method)
        self._write({"id": request.id, "method": method, "params": params or {}})
        return request

    def cancel(self, request: Request) -> None:
        """Cancel a request."""
        self._write({"method": "$/cancelRequest", "params": {"id": request.id}})

    async def wait(self, request: Request) -> Json:
        """Return a request's terminal response."""
        try:
            return await asyncio.wait_for(asyncio.shield(request.answer), PATIENCE_S)
        except TimeoutError:
            self.books.violate(f"{request.method} has no answer after {PATIENCE_S} s")
            raise

    async def call(self, method: str, params: Json | None = None) -> Json:
        """Return the terminal response to a new request."""
        return await self.wait(self.send(method, params))

    async def begun(self, request: Request) -> None:
        """Return once a stream has its first chunk or its end."""
        request.answer.add_done_callback(lambda _: request.begun.set())
        await asyncio.wait_for(request.begun.wait(), PATIENCE_S)

    def write_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._writer.write(data)

    def stop_reading(self) -> None:
        """Read nothing more until `read_on`."""
        self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def half_close(self) -> None:
        """Send nothing more; what is open is answered still."""
        self._writer.write_eof()

    def expect_end(self) -> None:
        """From now on the daemon may close this connection, once it has answered."""
        self._ends = True

    async def ended(self) -> None:
        """Return once the daemon closed."""
        self._ends = True
        await asyncio.wait_for(self._reading, PATIENCE_S)
        self._writer.close()

    async def leave(self) -> None:
        """Close both directions, whatever is open."""
        self._reading.cancel()
        for request in self._open.values():
            self.books.leave(request.method)
            request.answer.cancel()
        self._open.clear()
        self._writer.transport.abort()
        await asyncio.wait([self._reading])

    @property
    def _transport(self) -> asyncio.ReadTransport:
        transport: Any = self._writer.transport
        return transport  # type: ignore[no-any-return]  # a socket's transport does both

    def _write(self, message: Json) -> None:
        self._writer.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    async def _read(self) -> None:
        try:
            async for line in self._reader:
                self._take(msgspec.json.decode(line))
        except ConnectionError:
            pass
        if self._open or not self._ends:
            self.books.violate(f"the daemon closed a connection with {len(self._open)} requests unanswered")
            for request in self._open.values():
                self.books.leave(request.method)
                request.answer.cancel()

    def _take(self, message: Json) -> None:
        if "method" in message:
            if message["method"] == "infer_stream/chunk":
                self._chunk(message["params"])
        elif message["id"] is None:
            self.refused.append(message["error"])
        elif message["id"] not in self._open:
            self.books.violate(f"an answer to nothing that is open: {list(message)}")
        else:
            request = self._open.pop(message["id"])
            self.books.answer(request.method, message)
            if request.method == "infer_stream" and "result" in message:
                said = message["result"]["chunks"]
                self.books.check(said == request.chunks, f"{said} chunks sent, {request.chunks} came")
            request.answer.set_result(message)

    def _chunk(self, params: Json) -> None:
        request = self._open.get(params["id"])
        if request is None:
            self.books.violate("a chunk after its stream's end")
            return
        self.books.check(params["seq"] == request.chunks, f"chunk {params['seq']} came as number {request.chunks}")
        request.chunks += 1
        request.text += params["text"]
        request.begun.set()
