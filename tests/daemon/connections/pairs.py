"""Connections over real socket pairs, with requests that the test answers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection, ConnectionContext, HangupWatcher
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.connections.memory_share import ClientMemoryLimit
from car_daemon.methods.dispatch import Dispatch
from car_daemon.sockets.peer import peer_of
from car_protocol.envelope import Call
from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from tests.pace import HANG_S

Json = dict[str, Any]


class Done(Struct):
    """The result of a call that does nothing."""

    done: bool = True


class FakeHandler:
    """Answers `do` at once and `fail` with an exception; `wait` is answered when it is cancelled or by the test."""

    def __init__(self) -> None:
        self.done = 0
        self.waiting: list[RpcCall] = []
        self.one_waits = asyncio.Event()
        self.cancelled: list[str] = []
        self.before_each: Callable[[], None] = lambda: None

    def call(self, connection: Connection, request: Call, call: RpcCall) -> None:
        self.before_each()
        if request.method == "do":
            self.done += 1
            call.result(Done())
        elif request.method == "fail":
            raise ValueError("a defect")
        else:
            self.waiting.append(call)
            self.one_waits.set()
            call.work = CallWork(lambda reason: self._cancel(call, reason))

    def refused(self, connection: Connection, request: Call) -> None:
        pass

    def _cancel(self, call: RpcCall, reason: str) -> None:
        self.cancelled.append(reason)
        call.error(RpcError(reason))


class Pair:
    """A connection of the daemon and the client's end of its socket."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self.reader = reader
        self.writer = writer
        self.lost = asyncio.Event()

    def send(self, method: str, request_id: int) -> None:
        """Send one request."""
        self.writer.write(request(method, request_id))

    async def receive(self) -> Json:
        """Return the next message."""
        line = await self.reader.readline()
        if not line:
            raise EOFError
        message: Json = json.loads(line)
        return message

    async def rest(self) -> list[Json]:
        """Return all messages until the connection is closed."""
        return [json.loads(line) async for line in self.reader]

    async def gone(self) -> None:
        """Return once the daemon forgot the connection."""
        await self.lost.wait()


class Connections:
    """Connections of one daemon, with a fake handler unless one is given."""

    def __init__(
        self,
        limits: Limits | None = None,
        handler: Dispatch | None = None,
        memory_limit: ClientMemoryLimit | None = None,
    ) -> None:
        self.handler = FakeHandler()
        self._hangups = HangupWatcher()
        self._context = ConnectionContext(
            (handler or self.handler).call,
            (handler or self.handler).refused,
            limits or Limits(),
            FairQueue(),
            self._hangups,
            memory_limit or ClientMemoryLimit(),
            self._lost,
        )
        self._pairs: dict[int, Pair] = {}

    async def connect(self) -> Pair:
        """Return a new connection."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection(len(self._pairs) + 1, peer_of(ours), self._context)
        await loop.connect_accepted_socket(lambda: connection, ours)
        reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=2**24)
        pair = self._pairs[connection.number] = Pair(connection, reader, writer)
        return pair

    def start(self) -> None:
        """Watch for hang-ups in the running loop."""
        self._hangups.start()

    async def close(self) -> None:
        """Close all connections from the clients' side."""
        for pair in self._pairs.values():
            pair.writer.transport.abort()
            await pair.gone()
        self._hangups.close()

    def _lost(self, connection: Connection) -> None:
        self._pairs[connection.number].lost.set()


@asynccontextmanager
async def connections(
    limits: Limits | None = None,
    handler: Dispatch | None = None,
    memory_limit: ClientMemoryLimit | None = None,
) -> AsyncIterator[Connections]:
    """Yield connections; all must be forgotten at the end of the block."""
    all_of_them = Connections(limits, handler, memory_limit)
    all_of_them.start()
    try:
        yield all_of_them
    finally:
        # A loop of uvloop that is closed with connections open never ends.
        async with asyncio.timeout(HANG_S):
            await all_of_them.close()


def batch_of(*requests: bytes) -> bytes:
    """Return requests as one batch, a line."""
    return b"[" + b",".join(each[:-1] for each in requests) + b"]\n"


def request(method: str, request_id: int) -> bytes:
    """Return a request as a line."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"%s"}\n' % (request_id, method.encode())
