"""Fast streams are read together, some chunks at a time: a wake-up costs several times as much as a chunk."""

import asyncio
import time
from collections.abc import Callable

# Shorter than a screen shows a picture; the first chunk of a stream never waits.
PAUSE_S = 0.004
# About 500 chunks of a token a second: slower streams are read at once, because a pause would save them nothing.
FAST_BYTES_PER_S = 50_000


class SharedPause:
    """A pause in the reading of several connections, which ends for all of them at once."""

    def __init__(self) -> None:
        self._paused: list[asyncio.Transport] = []

    def begin(self, transport: asyncio.Transport) -> None:
        """Stop reading a connection until the end of the pause."""
        transport.pause_reading()
        if not self._paused:
            asyncio.get_running_loop().call_later(PAUSE_S, self._end)
        self._paused.append(transport)

    def _end(self) -> None:
        paused, self._paused = self._paused, []
        for transport in paused:
            if not transport.is_closing():
                transport.resume_reading()


class Coalescing:
    """The speed of one connection, which is read at once while it is slow, and after a pause while it is fast."""

    def __init__(self, pause: SharedPause, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause
        self._clock = clock
        self._read_at = 0.0

    def read(self, transport: asyncio.Transport, size: int) -> None:
        """Count bytes that were read and written on, and begin a pause where they came fast."""
        now = self._clock()
        if size > (now - self._read_at) * FAST_BYTES_PER_S:
            self._pause.begin(transport)
        self._read_at = now
