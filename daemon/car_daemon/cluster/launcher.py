"""The launch of a replica's engine on a cluster, which waits for a place as long as it takes."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from car_daemon.cluster.placer import Placer
from car_daemon.cluster.remote import CONNECT_ERRORS, RemoteEngine
from car_daemon.engines.link import Engine, NoPlace
from car_daemon.host.devices import CPU
from car_daemon.host.event_log import log
from car_daemon.ipc.frames import FromEngine
from car_daemon.ipc.placing import HostMemory, Place
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica

Memory = Callable[[str, HostMemory], None]


class Pauses(Struct, frozen=True):
    """Seconds between two tries to place an engine: the first pause, which doubles up to the longest."""

    first_s: float = 2.0
    longest_s: float = 30.0


class ClusterLauncher:
    """Launches the engines of one replica; a lack of places is a state of the replica, never an engine's death.

    `memory` is called with each reading of an engine's host.
    """

    def __init__(
        self,
        entry: ModelEntry,
        replica: Replica,
        placer: Placer,
        memory: Memory,
        *,
        clock: Callable[[], float],
        pauses: Pauses | None = None,
    ) -> None:
        self._entry = entry
        self._replica = replica
        self._placer = placer
        self._memory = memory
        self._clock = clock
        self._pauses = pauses or Pauses()

    async def __call__(self, receive: Callable[[FromEngine], None]) -> Engine:
        """Return a connected engine once a machine of the cluster has a place for it."""
        since, pause_s = self._clock(), self._pauses.first_s
        while True:
            try:
                engine = await self._launch(receive)
            except NoPlace as none:
                log.warning("engine.unplaced", model=self._entry.name, why=str(none), again_in_s=pause_s)
                self._replica.wait_for(str(none))
            else:
                self._replica.wait_for(None)
                ms = round((self._clock() - since) * 1000)
                log.info("engine.placed", model=self._entry.name, host=engine.host, ms=ms)
                return engine
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._pauses.longest_s)

    async def _launch(self, receive: Callable[[FromEngine], None]) -> RemoteEngine:
        """Have a seat opened and connect to it; raises NoPlace."""
        seat = await self._placer.place(order_of(self._entry, self._replica))
        engine = RemoteEngine(seat.address, seat.node, self._clock, lost=self._placer.avoid)
        try:
            await engine.connect(seat, receive, lambda reading: self._memory(seat.address, reading))
        except CONNECT_ERRORS as error:
            self._placer.avoid(seat.node)
            fault = f"{seat.address}:{seat.port} cannot be reached ({type(error).__name__})"
            raise NoPlace(f"{fault}: open its ports to this machine") from error
        return engine


def order_of(entry: ModelEntry, replica: Replica) -> Place:
    """Return the frame that has a replica placed as it is configured."""
    settings, needs = entry.settings, entry.settings.needs
    cpus = needs.cpus if needs.cpus is not None else float(settings.threads or 1)
    gpus = needs.gpus if needs.gpus is not None else float(replica.device != CPU)
    return Place(
        number=0,
        model=entry.name,
        path=str(settings.path),
        cpus=cpus,
        gpus=gpus,
        labels=needs.labels,
        spread=settings.spread,
    )
