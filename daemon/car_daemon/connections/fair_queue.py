"""Fair division of the event loop's time between connections with frames to carry out."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

# Frames are carried out for this long in a turn of the event loop; other work is delayed by no more than that.
_SLICE_S = 0.002


class FairQueue:
    """Carries out one frame of each source in turn, for 2 ms of every turn of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sources: deque[Callable[[], bool]] = deque()  # the next one first

    def __repr__(self) -> str:
        return f"<FairQueue sources={len(self._sources)}>"

    def join(self, source: Callable[[], bool]) -> None:
        """Add a source, which carries out a frame, never raises, and returns whether more wait, until none does."""
        self._sources.append(source)
        if len(self._sources) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        until = self._clock() + _SLICE_S
        while self._sources:
            if self._sources[0]():
                self._sources.rotate(-1)
            else:
                self._sources.popleft()
            if self._clock() >= until:
                break
        if self._sources:
            asyncio.get_running_loop().call_soon(self._turn)
