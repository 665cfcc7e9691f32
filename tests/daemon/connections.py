"""Connections over real socket pairs, with calls that the test answers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from car_daemon.connection import Calls, Connection, Surroundings
from car_daemon.exchange import Exchange, Work
from car_daemon.hangup import HangupWatcher
from car_daemon.held import HeldBytes
from car_daemon.peer import peer_of
from car_daemon.turns import Turns
from car_protocol.envelope import Call
from car_protocol.errors import RpcError
from car_protocol.limits import Limits

Json = dict[str, Any]


class Done(Struct):
    """The result of a call that does nothing."""

    done: bool = True


class FakeCalls:
    """Answers `do` at once and `fail` with an exception; `wait` is answered when it is cancelled or by the test."""

    def __init__(self) -> None:
        self.done = 0
        self.waiting: list[Exchange] = []
        self.one_waits = asyncio.Event()
        self.cancelled: list[str] = []
        self.notified: list[str] = []
        self.before_each: Callable[[], None] = lambda: None

    def call(self, connection: Connection, call: Call, exchange: Exchange) -> None:
        self.before_each()
        if call.method == "do":
            self.done += 1
            exchange.result(Done())
        elif call.method == "fail":
            raise ValueError("a defect")
        else:
            self.waiting.append(exchange)
            self.one_waits.set()
            exchange.work = Work(lambda reason: self._cancel(exchange, reason))

    def notify(self, connection: Connection, call: Call) -> None:
        self.notified.append(call.method)

    def waits(self, call: Call) -> bool:
        return call.method == "wait"

    def refused(self, call: Call) -> None:
        pass

    def _cancel(self, exchange: Exchange, reason: str) -> None:
        self.cancelled.append(reason)
        exchange.error(RpcError(reason))


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
    """Connections that share what connections share."""

    def __init__(self, limits: Limits | None = None, calls: Calls | None = None, held: HeldBytes | None = None) -> None:
        self.calls = FakeCalls()
        self._hangups = HangupWatcher()
        self._surroundings = Surroundings(
            calls or self.calls, limits or Limits(), Turns(), self._hangups, held or HeldBytes(), self._lost
        )
        self._pairs: dict[int, Pair] = {}

    async def connect(self) -> Pair:
        """Return a new connection."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection(len(self._pairs) + 1, peer_of(ours), self._surroundings)
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
    limits: Limits | None = None, calls: Calls | None = None, held: HeldBytes | None = None
) -> AsyncIterator[Connections]:
    """Have connections for the length of a block; none of them may stay."""
    all_of_them = Connections(limits, calls, held)
    all_of_them.start()
    try:
        yield all_of_them
    finally:
        # A loop of uvloop that is closed with connections open never ends.
        async with asyncio.timeout(10):
            await all_of_them.close()


def batch_of(*requests: bytes) -> bytes:
    """Return requests as one batch, a line."""
    return b"[" + b",".join(each[:-1] for each in requests) + b"]\n"


def request(method: str, request_id: int) -> bytes:
    """Return a request as a line."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"%s"}\n' % (request_id, method.encode())
