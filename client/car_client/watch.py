"""The status again and again, for code without an event loop."""

import contextlib
import select
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from car_client import calls
from car_client.calls import CallSpec
from car_client.errors import DaemonUnavailable, InvalidParams
from car_client.results import Status
from car_client.retry import NEVER, Deadline
from car_client.transport.blocking_connection import BlockingConnection


class StatusWatch(Iterator[Status]):
    """Statuses as the daemon sends them, as an iterator; a daemon that sends none by itself is polled.

    Several watches of one client have them at the shortest of their intervals. A step raises the same errors as
    `Client.status`.
    """

    def __init__(
        self,
        connected: Callable[[], BlockingConnection],
        request: Callable[[CallSpec[Status]], Status],
        interval_s: float,
        timeout_s: float | None,
    ) -> None:
        self._connected = connected
        self._request = request
        self._interval_s = interval_s
        self._timeout_s = None if timeout_s is None else timeout_s + interval_s
        self._connection: BlockingConnection | None = None  # the one that sends statuses
        self._poll_at = 0.0  # when the next poll is due, if no connection sends them
        self._newest: Status | None = None  # received and not yet taken

    def __next__(self) -> Status:
        deadline = Deadline(self._timeout_s)
        while (status := self.take()) is None:
            if deadline.remaining_s == 0:
                raise deadline.error()
            self._wait((), deadline)
        return status

    def take(self) -> Status | None:
        """Return the newest status that was not taken yet, None if there is none; the first call requests one.

        Raises:
            CardError: The errors of `status`.
        """
        if self._connection is None:
            if not self._poll_at:
                return self._begin()
            return self._poll() if time.monotonic() >= self._poll_at else None
        if not self._connection.session.loss:
            self._connection.drain()
        if self._connection.session.loss:
            raise self._connection.session.loss
        newest, self._newest = self._newest, None
        return newest

    def wait(self, *others: int) -> list[int]:
        """Wait until there may be a status to take or another descriptor is readable; return the readable descriptors.

        Args:
            others: Descriptors that end the wait too.
        """
        return self._wait(others, NEVER)

    def close(self) -> None:
        """End the subscription."""
        connection, self._connection = self._connection, None
        if connection and connection.open:
            # With a connection that is lost by now the subscription has ended too.
            with contextlib.suppress(DaemonUnavailable):
                self._request(calls.subscribe(connection.session.unwatch(self._on_status)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, others: tuple[int, ...], deadline: Deadline) -> list[int]:
        waiting = select.poll()
        for descriptor in (*others, *([self._connection.fileno()] if self._connection else ())):
            waiting.register(descriptor, select.POLLIN)
        if self._newest is not None:
            patience_ms: float | None = 0.0
        elif self._connection:
            patience_ms = deadline.remaining_ms
        else:
            patience_ms = max(0.0, self._poll_at - time.monotonic()) * 1000
        return [descriptor for descriptor, _ in waiting.poll(patience_ms) if descriptor in others]

    def _begin(self) -> Status:
        connection = self._connected()
        interval_ms = connection.session.watch(self._on_status, round(self._interval_s * 1000))
        try:
            status = self._request(calls.subscribe(interval_ms))
        except InvalidParams:
            connection.session.unwatch(self._on_status)
            return self._poll()
        except BaseException:
            connection.session.unwatch(self._on_status)
            raise
        self._connection = connection
        return status

    def _poll(self) -> Status:
        status = self._request(calls.status())
        self._poll_at = time.monotonic() + self._interval_s
        return status

    def _on_status(self, status: Status | None) -> None:
        self._newest = status
