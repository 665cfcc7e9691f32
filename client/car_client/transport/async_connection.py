"""A session over an asyncio transport, and the connection again after a loss."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from car_client.calls import CallSpec
from car_client.errors import CardError, ConnectionLost, DaemonUnavailable, ProtocolError
from car_client.paths import unavailable
from car_client.retry import Deadline, backoff
from car_client.transport.protocol_session import ProtocolSession

T = TypeVar("T")
_READ_BYTES = 65_536


class Interrupted(Exception):
    """The owner was closed before the work was done."""


class Interruptible:
    """Runs coroutines until `end`, which cancels the unfinished coroutines."""

    def __init__(self) -> None:
        self.over = False
        self._running: set[asyncio.Future[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raises Interrupted after `end`, also if `end` is called meanwhile."""
        if self.over:
            work.close()
            raise Interrupted
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            await asyncio.gather(task, return_exceptions=True)
        finally:
            self._running.discard(task)
        if self.over:
            raise Interrupted
        return task.result()

    def end(self) -> None:
        """Cancel the work in progress, and run none from now on."""
        self.over = True
        for task in self._running:
            task.cancel()


class AsyncConnection(asyncio.Protocol):
    """One connection to the daemon; `on_lost` is called once, when it has ended."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.session = ProtocolSession()
        self.lost = asyncio.Event()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None  # set by connection_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribe to the capacity."""
        self._transport = cast(asyncio.Transport, transport)
        self.session.greet()
        self.write(self.session.due())

    def data_received(self, data: bytes) -> None:
        """Route the received bytes; a message that the protocol forbids ends the connection."""
        try:
            self.session.receive(data)
        except ProtocolError as error:
            self.close(error)
        self.write(self.session.due())

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the calls in flight."""
        if error is not None and self._transport:
            with contextlib.suppress(ProtocolError):
                self.session.receive(last_words(self._transport))
        self.session.lose()
        self.lost.set()
        self._on_lost()

    def write(self, frame: bytes) -> None:
        """Send a frame; after the end of the connection nothing happens."""
        if frame and self._transport and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self, reason: CardError | None = None) -> None:
        """Fail the calls in flight and end the connection."""
        self.session.lose(reason)
        if self._transport:
            self._transport.abort()


def last_words(transport: asyncio.Transport) -> bytes:
    """Return what had come when a write failed: why the daemon ended the connection. The transport drops it."""
    words: list[bytes] = []
    with contextlib.suppress(OSError), transport.get_extra_info("socket").dup() as arrived:
        arrived.setblocking(False)
        while data := arrived.recv(_READ_BYTES):
            words.append(data)
    return b"".join(words)


class AsyncReply:
    """A call with the connection that carries it."""

    def __init__(self, connection: AsyncConnection, spec: CallSpec[Any]) -> None:
        self._connection = connection
        self._changed = asyncio.Event()
        self.call = connection.session.begin(spec.method, spec.params, self._changed.set, spec.on_progress)

    async def send(self, _: Deadline) -> None:
        """Send the request in its turn: the transport keeps what the daemon does not read yet."""
        self._connection.write(self._connection.session.due())

    async def wait(self, deadline: Deadline) -> None:
        """Wait until the call has a chunk or an end; raises RequestTimeout."""
        while self.call.idle:
            self._changed.clear()
            await happens(self._changed, deadline)

    def cancel(self) -> None:
        """Cancel the call at the daemon, unless it has ended."""
        self._connection.write(self._connection.session.cancel(self.call))


async def happens(event: asyncio.Event, deadline: Deadline) -> None:
    """Wait for an event; raises RequestTimeout at the deadline."""
    remaining_s = deadline.remaining_s
    if remaining_s is None:
        await event.wait()
        return
    try:
        async with asyncio.timeout(remaining_s):
            await event.wait()
    except TimeoutError:
        raise deadline.error() from None


Pause = Callable[[float], Coroutine[Any, Any, None]]


class AsyncReconnector:
    """Keeps a connection to the first of `paths` that answers, from `start` to `aclose`."""

    def __init__(self, paths: list[Path], pause: Pause) -> None:
        self._paths = paths
        self._pause = pause
        self.connection: AsyncConnection | None = None  # None while there is no live one
        self._connected = asyncio.Event()
        self._tried = asyncio.Event()  # set after the first attempt, which is made even with a timeout of 0
        self._task: asyncio.Task[None] | None = None
        self._failures: dict[Path, OSError] = {}  # of the last attempt on each path
        self._refusal: CardError | None = None  # why the daemon ended the last connection before it answered
        self._pauses = Interruptible()  # of calls that are sent again; `aclose` ends them

    def start(self) -> None:
        """Begin to connect in the background; further calls do nothing. Raises DaemonUnavailable once closed."""
        if self._pauses.over:
            raise _closed()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_connected(), name="card connection")

    async def ready(self, timeout_s: float) -> AsyncConnection:
        """Return the live connection; raises ConnectTimeout, or DaemonUnavailable once closed."""
        self.start()
        await self._tried.wait()
        if self.connection is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while self.connection is None and not self._pauses.over:
                        await self._connected.wait()
        if self._pauses.over:
            raise _closed()
        if self.connection is None:
            raise self._refusal or unavailable(self._paths, self._failures)
        return self.connection

    async def pause(self, seconds: float) -> None:
        """Wait before a call is sent again; raises DaemonUnavailable as soon as the client is closed."""
        try:
            await self._pauses.run(self._pause(seconds))
        except Interrupted:
            raise _closed() from None

    async def aclose(self) -> None:
        """End the connection and all pauses, and stop connecting."""
        self._pauses.end()
        self._connected.set()
        self._tried.set()
        if self.connection is not None:
            self.connection.close(_closed())
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_connected(self) -> None:
        delays = backoff()
        while True:
            connection = await self._connect()
            self._tried.set()
            if connection is not None:
                try:
                    if not connection.lost.is_set():
                        self.connection = connection
                        self._connected.set()
                    await connection.lost.wait()
                finally:
                    connection.close()
                loss, self._refusal = connection.session.loss, None
                if connection.session.greeted:
                    delays = backoff()
                elif not isinstance(loss, ConnectionLost):
                    self._refusal = loss
            await self._pause(next(delays))

    async def _connect(self) -> AsyncConnection | None:
        loop = asyncio.get_running_loop()
        for path in self._paths:
            try:
                _, connection = await loop.create_unix_connection(lambda: AsyncConnection(self._on_lost), str(path))
            except OSError as error:
                self._failures[path] = error
            else:
                return connection
        return None

    def _on_lost(self) -> None:
        self.connection = None
        self._connected.clear()


def _closed() -> DaemonUnavailable:
    return DaemonUnavailable("the client is closed")
