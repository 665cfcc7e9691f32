"""Fair division of the event loop's time between users, and their connections, with frames to carry out."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable

# Frames are carried out for this long in a turn of the event loop; other work is delayed by no more than that.
_SLICE_S = 0.002


class FairQueue:
    """Carries out one frame of each owner in turn, and of its sources in turn, for 2 ms of a turn of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sources: dict[Hashable, deque[Callable[[], bool]]] = {}  # by owner; the next first

    def __repr__(self) -> str:
        return f"<FairQueue sources={sum(map(len, self._sources.values()))}>"

    def join(self, source: Callable[[], bool], owner: Hashable) -> None:
        """Add a source, which carries out a frame, never raises, and returns whether more wait, until none does."""
        if not self._sources:
            asyncio.get_running_loop().call_soon(self._turn)
        self._sources.setdefault(owner, deque()).append(source)

    def _turn(self) -> None:
        until = self._clock() + _SLICE_S
        while self._sources:
            owner, sources = next(iter(self._sources.items()))
            if sources[0]():
                sources.rotate(-1)
            else:
                sources.popleft()
            del self._sources[owner]
            if sources:
                self._sources[owner] = sources
            if self._clock() >= until:
                break
        if self._sources:
            asyncio.get_running_loop().call_soon(self._turn)
