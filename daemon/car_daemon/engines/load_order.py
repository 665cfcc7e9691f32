"""The order of engines: their numbers, and one model after the other where they take memory of GPUs."""

import asyncio
from contextlib import ExitStack
from itertools import count

from car_daemon.host.devices import CPU
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica


class LoadOrder:
    """Numbers engines, and lets those of one model at a time load onto GPUs of this machine.

    Two models that load at once, as they do where a driver's fault ended both, would each find the same memory free.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._turn = asyncio.Lock()
        self._model: ModelEntry | None = None  # whose turn it is
        self._loading = 0  # its engines that load

    def __repr__(self) -> str:
        return f"<LoadOrder of {'none' if self._model is None else self._model.name}, {self._loading} loading>"

    def next_number(self) -> int:
        """Return a number that no other engine of the daemon has."""
        return next(self._numbers)

    async def turn(self, entry: ModelEntry, replica: Replica) -> ExitStack:
        """Return once an engine of a replica may load; the caller closes what it gets as soon as that has ended."""
        turn = ExitStack()
        if replica.device != CPU and not replica.placed:
            # Replicas of one model share the devices evenly, each by its part.
            if self._model is not entry:
                await self._turn.acquire()
                self._model = entry
            self._loading += 1
            turn.callback(self._ended)
        return turn

    def _ended(self) -> None:
        self._loading -= 1
        if not self._loading:
            self._model = None
            self._turn.release()
