"""The event loop's time, shared between connections that have frames to carry out."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

# Frames are carried out for so long before the loop sees to everything else; what runs feels no more than that.
_SLICE_S = 0.002


class Worker(Protocol):
    """Has frames to carry out."""

    def work(self) -> bool:
        """Carry out one; tell whether more wait. Never raises."""
        ...


class Turns:
    """Lets every worker carry out one frame after the other's, for a slice of every turn of the loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Mutable state: who has frames, in order.
        self._workers: deque[Worker] = deque()

    def join(self, worker: Worker) -> None:
        """Take a worker in, until no frames of it wait."""
        self._workers.append(worker)
        if len(self._workers) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        until = self._clock() + _SLICE_S
        while self._workers:
            if self._workers[0].work():
                self._workers.rotate(-1)
            else:
                self._workers.popleft()
            if self._clock() >= until:
                break
        if self._workers:
            asyncio.get_running_loop().call_soon(self._turn)
