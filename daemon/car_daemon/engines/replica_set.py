"""All engines of one model: started together, ended together."""

import asyncio
from collections.abc import Callable

from msgspec import structs

from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica, Supervisor
from car_daemon.models.settings import ModelSettings


class ReplicaSet:
    """A supervisor for each replica of a model, made by `supervise`."""

    def __init__(self, entry: ModelEntry, supervise: Callable[[ModelEntry, Replica], Supervisor]) -> None:
        self._entry = entry
        self._supervise = supervise
        # A replica that is started again keeps its supervisor, which counts the deaths of its engines.
        self._supervisors: dict[Replica, Supervisor] = {}

    def __repr__(self) -> str:
        return f"<ReplicaSet of {self._entry.name}: {list(self._supervisors.values())}>"

    def start(self) -> None:
        """Load the model as it is configured now."""
        replicas = self._entry.renew()
        self._supervisors = {
            each: self._supervisors.get(each) or self._supervise(self._entry, each) for each in replicas
        }
        for supervisor in self._supervisors.values():
            supervisor.start()

    def grow(self) -> None:
        """Load the further replicas of a model whose configuration has more of them on a cluster."""
        if _is_larger(self._entry.configured, self._entry.settings):
            further = [each for each in self._entry.renew() if each not in self._supervisors]
            for replica in further:
                self._supervisors[replica] = self._supervise(self._entry, replica)
                self._supervisors[replica].start()

    def restart(self) -> None:
        """End all engines at once and load the model again."""
        for supervisor in self._supervisors.values():
            supervisor.restart()

    async def stop(self) -> None:
        """End all engines."""
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors.values()))


def _is_larger(after: ModelSettings, before: ModelSettings) -> bool:
    """Return whether settings differ by more engines on a cluster alone."""
    more = after.placed and after.replicas > before.replicas
    return more and after == structs.replace(before, replicas=after.replicas)
