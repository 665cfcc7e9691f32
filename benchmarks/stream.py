"""One streaming request on a raw connection, with the time of every chunk."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

_LINE_BYTES = 1 << 20


@dataclass
class StreamTimes:
    """Milliseconds to the first chunk and between the chunks after it; tokens, and the whole in seconds."""

    first_ms: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    queue_ms: float = 0.0


class Connection:
    """A connection that runs one stream at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request."""
        self._send(method, params)
        response: dict[str, Any] = msgspec.json.decode(await self._reader.readline())
        return response

    async def stream(self, started: asyncio.Event | None = None, **params: Any) -> StreamTimes:
        """Run a stream to its end; `started` is set by its first chunk."""
        times = StreamTimes()
        began = last = time.perf_counter()
        self._send("infer_stream", params)
        while True:
            line = await self._reader.readline()
            now = time.perf_counter()
            if b'"infer_stream/chunk"' not in line:
                break
            if times.first_ms:
                times.gaps_ms.append((now - last) * 1000)
            else:
                times.first_ms = (now - last) * 1000
                if started is not None:
                    started.set()
            last = now
        result = msgspec.json.decode(line)["result"]
        times.tokens = result["usage"]["completion_tokens"]
        times.queue_ms = result["timings"]["queue_ms"]
        times.seconds = now - began
        return times

    async def burst(self, count: int, params: dict[str, Any], refused_ms: list[float]) -> int:
        """Send requests at once; return how many were answered, and add the times of those that were refused."""
        sent = time.perf_counter()
        for number in range(count):
            self._send("infer", params, number)
        for _ in range(count):
            line = await self._reader.readline()
            if b'"error"' in line:
                refused_ms.append((time.perf_counter() - sent) * 1000)
        return count

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()

    def _send(self, method: str, params: dict[str, Any], request_id: int = 1) -> None:
        request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        self._writer.write(msgspec.json.encode(request) + b"\n")


async def connect(socket: Path) -> Connection:
    """Return a new connection."""
    return Connection(*await asyncio.open_unix_connection(str(socket), limit=_LINE_BYTES))
