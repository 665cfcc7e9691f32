"""Who is told the daemon's status again and again, and when next."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from car_daemon.peer import Peer
from car_protocol.methods import STATUS_CHANGED
from car_protocol.status import Status


class Listener(Protocol):
    """A connection that hears the status."""

    number: int
    peer: Peer

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        ...

    @property
    def blocked(self) -> bool:
        """Whether it has not read what was sent."""
        ...

    def notify(self, method: str, params: Status) -> None:
        """Send a notification."""
        ...


class StatusWatch:
    """Tells every listener at its own interval; one that does not read is passed over until it does."""

    def __init__(self, describe: Callable[[Peer], Status]) -> None:
        self._describe = describe
        # Mutable state: the next notification of every listener, by the number of its connection.
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def start(self, listener: Listener, interval_ms: int) -> None:
        """Tell a listener every so many milliseconds from now on."""
        self.stop(listener)
        self._arm(listener, interval_ms / 1000)

    def stop(self, listener: Listener) -> None:
        """Tell a listener no more."""
        if (timer := self._timers.pop(listener.number, None)) is not None:
            timer.cancel()

    def _arm(self, listener: Listener, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[listener.number] = loop.call_later(seconds, self._tell, listener, seconds)

    def _tell(self, listener: Listener, seconds: float) -> None:
        del self._timers[listener.number]
        if listener.closed:
            return
        if not listener.blocked:
            listener.notify(STATUS_CHANGED, self._describe(listener.peer))
        self._arm(listener, seconds)
