"""The order of engines: their numbers, and one after the other where they take memory of the same GPU."""

from contextlib import ExitStack
from itertools import count

from car_base.host.devices import CPU, overlap
from car_daemon.models.condition_waiters import ConditionWaiters
from car_daemon.models.replica import Replica


class LoadOrder:
    """Numbers engines, and lets one at a time load onto each GPU of this machine.

    Engines that load at once, as they do where a driver's fault ended them, would each find the same memory free.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._loading: list[str] = []  # the devices that engines load onto now
        self._waiters = ConditionWaiters()

    def __repr__(self) -> str:
        return f"<LoadOrder loading={self._loading} {self._waiters!r}>"

    def next_number(self) -> int:
        """Return a number that no other engine of the daemon has."""
        return next(self._numbers)

    async def turn(self, replica: Replica) -> ExitStack:
        """Return once an engine of a replica may load; the caller closes what it gets as soon as that has ended."""
        turn = ExitStack()
        if replica.device != CPU and not replica.placed:
            while not self._is_free(replica.device):
                await self._waiters.until(lambda: self._is_free(replica.device))
            self._loading.append(replica.device)
            turn.callback(self._ended, replica.device)
        return turn

    def _is_free(self, device: str) -> bool:
        return not any(overlap(device, each) for each in self._loading)

    def _ended(self, device: str) -> None:
        self._loading.remove(device)
        self._waiters.changed()
