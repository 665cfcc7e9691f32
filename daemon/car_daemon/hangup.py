"""Tells a full close from a half-close, which look alike to the event loop: both end the incoming stream."""

import asyncio
import contextlib
import select
import sys
from collections.abc import Callable


class HangupWatcher:
    """Calls back once a peer that had closed its writing side closes the other one too.

    On Linux an epoll with an empty event mask reports nothing but the hang-up; elsewhere a failed write is the sign.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        # Mutable state: whom to call for which descriptor.
        self._watched: dict[int, Callable[[], None]] = {}

    def start(self) -> None:
        """Watch from the running event loop."""
        if self._epoll is not None:
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._wake)

    def watch(self, descriptor: int, hung_up: Callable[[], None]) -> None:
        """Call `hung_up` at the full close of this descriptor's peer."""
        if self._epoll is not None:
            self._epoll.register(descriptor, 0)
            self._watched[descriptor] = hung_up

    def forget(self, descriptor: int) -> None:
        """Stop watching."""
        if self._epoll is not None and self._watched.pop(descriptor, None) is not None:
            # A descriptor that is closed already has left the epoll by itself.
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Stop watching everything."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _wake(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            hung_up = self._watched.get(descriptor)
            self.forget(descriptor)
            if hung_up is not None:
                hung_up()
