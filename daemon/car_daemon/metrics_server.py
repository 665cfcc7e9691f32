"""Serves the metrics to readers that speak HTTP, one request a connection."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from car_daemon import faults
from car_daemon.accept import Acceptor
from car_daemon.metrics_http import refusal, respond

MAX_READERS = 4
MAX_HEAD_BYTES = 8 * 1024
PATIENCE_S = 5.0
_END_OF_HEAD = b"\r\n\r\n"


class MetricsServer:
    """Answers every reader once and closes; `metrics` gives content type and text."""

    def __init__(self, metrics: Callable[[], tuple[str, str]], patience: float = PATIENCE_S) -> None:
        self._metrics = metrics
        self._patience = patience
        self._acceptor = Acceptor(self._take)
        # Mutable state: the readers that are being answered, and where others come from, None where nobody does.
        self._readers: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    def listen(self, listener: socket.socket) -> None:
        """Accept readers from this socket from now on, and from no other."""
        self._listener = listener
        self._acceptor.start(listener)

    async def close(self) -> None:
        """Accept nobody more, and drop who is being answered."""
        self._listener = None
        self._acceptor.stop()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _take(self, accepted: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(accepted))
        self._readers.add(task)
        task.add_done_callback(self._answered)
        if len(self._readers) >= MAX_READERS:
            # The others wait in the kernel's queue: nobody here takes long.
            self._acceptor.stop()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._readers.discard(task)
        if self._listener is not None:
            self._acceptor.start(self._listener)

    async def _serve(self, accepted: socket.socket) -> None:
        """Answer one reader, who may be gone or not read."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2 * self._patience):
                await self._exchange(accepted)

    async def _exchange(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
        except BaseException:
            accepted.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            writer.write(await self._answer(reader))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        finally:
            transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                head = await reader.readuntil(_END_OF_HEAD)
        except TimeoutError:
            return refusal(408)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return refusal(400)
        try:
            return respond(head, self._metrics)
        except Exception as error:  # noqa: BLE001 - a defect in the figures must not end the daemon
            faults.report("metrics.failed", error)
            return refusal(500)
