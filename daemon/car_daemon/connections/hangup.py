"""Detection of a full close after a half-close; the event loop reports both as the end of the incoming stream."""

import asyncio
import contextlib
import select
import sys
from collections.abc import Callable


class HangupWatcher:
    """Calls back when a peer that closed its writing side closes the reading side too.

    On Linux an epoll with an empty event mask reports the hang-up alone; elsewhere a failed write reveals it.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._watched: dict[int, Callable[[], None]] = {}  # callbacks by descriptor

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
        """Stop watching a descriptor."""
        if self._epoll is not None and self._watched.pop(descriptor, None) is not None:
            # A closed descriptor has left the epoll already.
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Stop watching all descriptors."""
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
