"""All engines of one model: started together, ended together."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica


class Supervisor(Protocol):
    """What keeps the engine of one replica up."""

    def start(self) -> None:
        """Load the model, and load it again whenever its engine dies."""
        ...

    async def stop(self) -> None:
        """End the engine; it is not started again."""
        ...


class Crew:
    """A supervisor for each replica of a model, which `supervise` makes."""

    def __init__(self, entry: ModelEntry, supervise: Callable[[ModelEntry, Replica], Supervisor]) -> None:
        self._entry = entry
        self._supervise = supervise
        # Mutable state: the supervisors of the replicas that were started last. A replica keeps its own, which knows
        # how often its engines died.
        self._supervisors: dict[Replica, Supervisor] = {}

    def start(self) -> None:
        """Load the model as it is configured now."""
        replicas = self._entry.renew()
        self._supervisors = {each: self._supervisors.get(each) or self._new(each) for each in replicas}
        for supervisor in self._supervisors.values():
            supervisor.start()

    async def stop(self) -> None:
        """End all engines."""
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors.values()))

    def _new(self, replica: Replica) -> Supervisor:
        return self._supervise(self._entry, replica)
