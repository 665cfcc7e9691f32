"""Takes connections from a listening socket, and never more than there are descriptors for."""

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

log = structlog.get_logger()
# So many are accepted before the loop sees to everything else.
_AT_ONCE = 64


class Acceptor:
    """Hands over accepted sockets, non-blocking; the event loops' own servers drop what finds no descriptor.

    Descriptors that ran out come back when connections close; meanwhile newcomers wait in the kernel's queue.
    """

    def __init__(self, take: Callable[[socket.socket], None], *, pause_s: float = 0.2) -> None:
        self._take = take
        self._pause_s = pause_s
        # Mutable state: the socket that is listened on, whether descriptors are short, and the timer of a pause.
        self._listener: socket.socket | None = None
        self._short = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, listener: socket.socket) -> None:
        """Accept from this socket from now on, and from no other."""
        self.stop()
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def stop(self) -> None:
        """Accept no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listener, error)
                return
            self._short = False
            connection.setblocking(False)
            self._take(connection)
            if self._listener is not listener:
                # Who took it wants no more for now.
                return

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        if not self._short:
            log.warning("accept.paused", why=errno.errorcode.get(error.errno or 0, "unknown"))
        self._short = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._timer = loop.call_later(self._pause_s, self.start, listener)
