"""Fast streams are read together, some chunks at a time: a wake-up costs several times as much as a chunk."""

import asyncio
import time
from collections.abc import Callable

# Shorter than a screen shows a picture; the first chunk of a stream never waits.
PAUSE_S = 0.008
# About 210 chunks of a token a second: two or more come in a pause, which takes less CPU than their wake-ups.
FAST_BYTES_PER_S = 20_000
# A busy machine sends chunks in bursts, so a speed is the mean of a time that is long beside them.
WINDOW_S = 0.05


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
        self._since = 0.0
        self._bytes = 0  # read since then
        self._fast = False

    def read(self, transport: asyncio.Transport, size: int) -> None:
        """Count bytes that were read and written on, and begin a pause where they come fast."""
        self._bytes += size
        elapsed = self._clock() - self._since
        if elapsed > WINDOW_S:
            self._fast = self._bytes > elapsed * FAST_BYTES_PER_S
            self._since += elapsed
            self._bytes = 0
        if self._fast:
            self._pause.begin(transport)
