"""A session over an asyncio transport."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from car_client.calls import Ask
from car_client.errors import CardError, ContractBroken
from car_client.session import Exchange, Session


class Connection(asyncio.Protocol):
    """One connection to the daemon; `on_lost` is called once, when it has ended."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.session = Session()
        self.lost = asyncio.Event()
        self._on_lost = on_lost
        # Mutable state: set by connection_made.
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribe to the capacity."""
        self._transport = cast(asyncio.Transport, transport)
        self.write(self.session.greet().frame)

    def data_received(self, data: bytes) -> None:
        """Route what came; a daemon that breaks the contract is left."""
        try:
            self.session.receive(data)
        except ContractBroken as error:
            self.close(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what was in flight."""
        self.session.lose()
        self.lost.set()
        self._on_lost()

    def write(self, frame: bytes) -> None:
        """Send a frame; after the end of the connection nothing happens."""
        if frame and self._transport and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self, reason: CardError | None = None) -> None:
        """Fail what is in flight and end the connection."""
        self.session.lose(reason)
        if self._transport:
            self._transport.abort()


class Reply:
    """What one request on a connection gets back."""

    def __init__(self, connection: Connection, ask: Ask[Any]) -> None:
        self._connection = connection
        self._changed = asyncio.Event()
        self.exchange: Exchange = connection.session.begin(ask.method, ask.params, self._changed.set, ask.loading)
        connection.write(self.exchange.frame)

    async def change(self) -> None:
        """Wait until there is something to take."""
        while self.exchange.idle:
            self._changed.clear()
            await self._changed.wait()

    def cancel(self) -> None:
        """Ask the daemon to end the request, unless it has ended."""
        self._connection.write(self._connection.session.cancel(self.exchange))
