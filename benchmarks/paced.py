"""A daemon that sends chunks at a pace, and a program that only forwards bytes; `benchmarks.door` starts both.

Run: python -m benchmarks.paced daemon SOCKET CHUNKS RATE, or: python -m benchmarks.paced forward SOCKET DAEMON
"""

import asyncio
import sys
import time
from typing import Any, cast

import uvloop

from car_protocol.envelope import Notification, Result, decode_frame, encode_message
from car_protocol.framing import LineFramer
from car_protocol.methods import CHUNK

_ANSWER = {
    "finish_reason": "stop",
    "model": "paced",
    "seed": 1,
    "usage": {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1},
    "timings": {"queue_ms": 0.0, "prefill_ms": 1.0, "ttft_ms": 2.0, "decode_ms": 3.0, "total_ms": 5.0},
}


class PacedDaemon:
    """Streams of `chunks` chunks, `rate` a second each; as an engine's step does, each tick serves every stream."""

    def __init__(self, chunks: int, rate: float) -> None:
        self._chunks = chunks
        self._pause_s = 1 / rate
        self._sent: dict[tuple[asyncio.Transport, Any], int] = {}  # by connection and id of the call

    def begin(self, transport: asyncio.Transport, call_id: Any) -> None:
        """Begin a stream."""
        self._sent[transport, call_id] = 0

    async def run(self) -> None:
        """Serve every stream at its pace; a thread sleeps, because the loop's own timers have whole milliseconds."""
        due = time.monotonic()
        while True:
            due += self._pause_s
            await asyncio.to_thread(time.sleep, max(0.0, due - time.monotonic()))
            for (transport, call_id), sent in list(self._sent.items()):
                self._serve(transport, call_id, sent)

    def _serve(self, transport: asyncio.Transport, call_id: Any, sent: int) -> None:
        if sent < self._chunks and not transport.is_closing():
            transport.write(encode_message(Notification(CHUNK, {"id": call_id, "seq": sent, "text": " token"})))
            self._sent[transport, call_id] = sent + 1
            return
        del self._sent[transport, call_id]
        transport.write(encode_message(Result(call_id, _ANSWER | {"chunks": sent})))


class DaemonProtocol(asyncio.Protocol):
    """One connection to the paced daemon."""

    def __init__(self, daemon: PacedDaemon) -> None:
        self._daemon = daemon
        self._framer = LineFramer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Begin a stream for each call, whatever its method."""
        for frame in self._framer.feed(data):
            self._daemon.begin(self._transport, cast(Any, decode_frame(frame)).id)


class Forward(asyncio.Protocol):
    """One side of a forwarded connection."""

    def __init__(self) -> None:
        self.peer: asyncio.Transport | None = None
        self._early = b""  # came before the other side was there

    def join(self, peer: asyncio.Transport) -> None:
        """Forward to this peer from now on."""
        self.peer = peer
        peer.write(self._early)

    def data_received(self, data: bytes) -> None:
        """Forward bytes."""
        if self.peer is None:
            self._early += data
        else:
            self.peer.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """End the other side too."""
        if self.peer is not None:
            self.peer.close()


class Accepted(Forward):
    """The side that a client opened."""

    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the other side."""
        self._opening = asyncio.ensure_future(self._open(cast(asyncio.Transport, transport)))

    async def _open(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        opened, other = await loop.create_unix_connection(Forward, self._daemon)
        other.join(transport)
        self.join(opened)


async def serve(path: str, chunks: int, rate: float) -> None:
    """Serve paced streams until the process is ended."""
    daemon = PacedDaemon(chunks, rate)
    await asyncio.get_running_loop().create_unix_server(lambda: DaemonProtocol(daemon), path)
    await daemon.run()


async def forward(path: str, daemon: str) -> None:
    """Forward bytes between clients and a daemon until the process is ended."""
    server = await asyncio.get_running_loop().create_unix_server(lambda: Accepted(daemon), path)
    await server.serve_forever()


def main(role: str, path: str, *options: str) -> None:
    """Run one of the two."""
    uvloop.run(serve(path, int(options[0]), float(options[1])) if role == "daemon" else forward(path, options[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
