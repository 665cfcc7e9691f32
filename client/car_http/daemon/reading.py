"""Fast streams are read in turns, some chunks at a time: a wake-up costs several times as much as a chunk."""

import asyncio
import os
import time
from collections.abc import Callable

# Between two turns: no longer than a screen shows a picture. The first chunk of a stream never waits.
PAUSE_S = 0.016
# About 95 chunks of a token a second: where one or two come in a pause, turns still take less CPU than their wake-ups.
FAST_BYTES_PER_S = 9_000
# A busy machine sends chunks in bursts, so a speed is the mean of a time that is long beside them.
WINDOW_S = 0.05
# In one turn of a connection; the rest waits for the next one.
_READ_BYTES = 65_536


class Reading:
    """The reading of one connection, which the loop does at once, and the turns do while its chunks come fast."""

    def __init__(
        self, turns: "Turns", receive: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._turns = turns
        self._receive = receive
        self._clock = clock
        self._transport: asyncio.Transport | None = None  # set by begin
        self._descriptor: int | None = None  # while it is read in turns
        self._since = 0.0
        self._bytes = 0  # read since then
        self._fast = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Read a connection at once."""
        self._transport = transport

    def reset(self) -> None:
        """Count the bytes of another answer: its first chunks do not wait."""
        self._since, self._bytes, self._fast = 0.0, 0, False
        self.at_once()

    def count(self, size: int) -> None:
        """Count bytes that were read and written on; the connection is read in turns from then on while it is fast."""
        self._bytes += size
        elapsed = self._clock() - self._since
        if elapsed > WINDOW_S:
            self._fast = self._bytes > elapsed * FAST_BYTES_PER_S
            self._since += elapsed
            self._bytes = 0
        if not self._fast:
            self.at_once()
        elif self._descriptor is None:
            self._join()

    def at_once(self) -> None:
        """Have the loop read the connection again."""
        if self._descriptor is not None and self._transport:
            self._turns.leave(self)
            os.close(self._descriptor)
            self._descriptor = None
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def take(self) -> None:
        """Read the bytes that came since the last turn; the loop reads a connection that had none, or that ended.

        A failure of `receive` ends the connection, as it does in the loop.
        """
        data = b"" if self._descriptor is None else _read(self._descriptor)
        if not data:
            self._fast = False
            self.at_once()
            return
        try:
            self._receive(data)
        except Exception:
            if self._transport:
                self._transport.abort()
            raise

    def _join(self) -> None:
        """Leave the loop, which would wake up for the first byte."""
        if self._transport is None:
            return
        try:
            # One of its own, because the number of a closed descriptor may be that of another connection.
            self._descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
        except OSError:
            return  # no descriptor is left: the loop reads on
        self._transport.pause_reading()
        self._turns.join(self)


class Turns:
    """The connections that are read in turns, all of them in one wake-up."""

    def __init__(self) -> None:
        self._members: dict[Reading, None] = {}  # in the order in which they joined
        self._waiting = False  # for the next turn

    def join(self, reading: Reading) -> None:
        """Read a connection in the next turns."""
        self._members[reading] = None
        self._wait()

    def leave(self, reading: Reading) -> None:
        """Remove a connection from the turns."""
        self._members.pop(reading, None)

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().call_later(PAUSE_S, self._turn)

    def _turn(self) -> None:
        self._waiting = False
        try:
            for reading in list(self._members):
                reading.take()
        finally:
            if self._members:
                self._wait()


def _read(descriptor: int) -> bytes:
    """Return the bytes that came; none also at the end of the connection."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except (BlockingIOError, ConnectionError):
        return b""
