"""The status again and again, for code without an event loop."""

import select
import time
from collections.abc import Callable, Iterator
from typing import Self

from car_client import calls
from car_client.calls import Ask
from car_client.errors import InvalidParams
from car_client.wire import Wire
from car_protocol.status import Status


class StatusWatch(Iterator[Status]):
    """Statuses as the daemon sends them or, where it does not offer that, as they are asked for.

    Several watches of one client have them at the shortest of their intervals. Like every request it raises
    DaemonUnavailable where the connection is lost.
    """

    def __init__(self, connected: Callable[[], Wire], ask: Callable[[Ask[Status]], Status], interval_s: float) -> None:
        self._connected = connected
        self._ask = ask
        self._interval_s = interval_s
        # Mutable state: the connection that sends statuses, when to ask where none does, and the newest status
        # that was not taken.
        self._wire: Wire | None = None
        self._due = 0.0
        self._news: Status | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Status:
        while (status := self.take()) is None:
            self.wait()
        return status

    def take(self) -> Status | None:
        """Return the newest status that was not taken yet, None where there is none; the first call asks for one."""
        if self._wire is None:
            return self._ask_in_turn()
        if not self._wire.session.loss:
            self._wire.drain()
        if self._wire.session.loss:
            raise self._wire.session.loss
        news, self._news = self._news, None
        return news

    def wait(self, *others: int) -> list[int]:
        """Wait until there may be a status to take or one of the other descriptors can be read; returns those."""
        waiting = select.poll()
        for descriptor in (*others, *([self._wire.fileno()] if self._wire else ())):
            waiting.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in waiting.poll(self._patience_ms) if descriptor in others]

    def close(self) -> None:
        """Ask for no more statuses."""
        if self._wire and self._wire.open:
            others = self._wire.session.unwatch(self._keep)
            self._ask(calls.status(subscribe=others is not None, interval_ms=others))
        self._wire = None

    @property
    def _patience_ms(self) -> float | None:
        if self._news is not None:
            return 0.0
        return None if self._wire else max(0.0, self._due - time.monotonic()) * 1000

    def _ask_in_turn(self) -> Status | None:
        if not self._due:
            return self._begin()
        return self._poll() if time.monotonic() >= self._due else None

    def _begin(self) -> Status:
        wire = self._connected()
        interval_ms = wire.session.watch(self._keep, round(self._interval_s * 1000))
        try:
            status = self._ask(calls.status(subscribe=True, interval_ms=interval_ms))
        except InvalidParams:
            wire.session.unwatch(self._keep)
            return self._poll()
        except BaseException:
            wire.session.unwatch(self._keep)
            raise
        self._wire = wire
        return status

    def _poll(self) -> Status:
        status = self._ask(calls.status())
        self._due = time.monotonic() + self._interval_s
        return status

    def _keep(self, status: Status | None) -> None:
        self._news = status
