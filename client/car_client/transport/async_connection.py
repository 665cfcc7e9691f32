"""A session over an asyncio transport."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from car_client.calls import CallSpec
from car_client.errors import CardError, ProtocolError
from car_client.retry import Deadline
from car_client.transport.protocol_session import ProtocolSession


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
        self.write(self.session.greet().frame)

    def data_received(self, data: bytes) -> None:
        """Route the received bytes; a message that the protocol forbids ends the connection."""
        try:
            self.session.receive(data)
        except ProtocolError as error:
            self.close(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the calls in flight."""
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


class AsyncReply:
    """A call with the connection that carries it."""

    def __init__(self, connection: AsyncConnection, spec: CallSpec[Any]) -> None:
        self._connection = connection
        self._changed = asyncio.Event()
        self.call = connection.session.begin(spec.method, spec.params, self._changed.set, spec.on_progress)

    async def send(self, _: Deadline) -> None:
        """Send the request, at once: the transport keeps what the daemon does not read yet."""
        self._connection.write(self.call.frame)

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
