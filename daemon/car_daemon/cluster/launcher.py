"""The launch of a replica's engine on a cluster, which waits for a place as long as it takes."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from car_base import guide
from car_base.host.event_log import log
from car_base.host.files import NotReadable, content_of, with_parts
from car_base.ipc.frames import FromEngine
from car_base.ipc.placing import BUILT_IN, HostMemory, Place
from car_daemon.cluster.placer import Placer
from car_daemon.cluster.remote import CONNECT_ERRORS, RemoteEngine
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.engines.link import Engine, NoPlace
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica
from car_daemon.models.settings import ModelSettings

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

    async def __call__(self, receive: Callable[[FromEngine], None], _: CellKeeper | None) -> Engine:
        """Return a connected engine, which stores nothing, once a machine of the cluster has a place for it."""
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
        order = await asyncio.to_thread(order_of, self._entry)
        seat = await self._placer.place(order, self._entry.settings.spread, self._replica.wait_for)
        engine = RemoteEngine(seat, self._clock, self._closed)
        try:
            await engine.connect(receive, lambda reading: self._memory(seat.address, reading))
        except CONNECT_ERRORS as error:
            self._placer.close(seat)
            fault = f"{seat.address}:{seat.port} cannot be reached ({type(error).__name__})"
            why = f"{fault}: open the ports of that node to this machine"
            self._placer.avoid(seat.node, why)
            raise NoPlace(why) from error
        except BaseException:
            self._placer.close(seat)
            raise
        return engine

    def _closed(self, engine: RemoteEngine) -> None:
        """Count the engine's seat no more."""
        self._placer.close(engine.seat, lost=engine.cut)
        if engine.silent:
            self._placer.avoid(engine.seat.node, "its connection was lost")


def order_of(entry: ModelEntry) -> Place:
    """Return the frame that has an engine placed as it is configured; reads the daemon's own copy of its files."""
    settings, needs = entry.settings, entry.settings.needs
    return Place(
        number=0,
        model=entry.name,
        path=BUILT_IN if settings.path == guide.PATH else str(settings.path),
        hf=settings.hub,
        beside=list(map(str, settings.beside)),
        content=_own_content(settings),
        cpus=needs.cpus or 1.0,
        gpus=needs.gpus or 0.0,
        memory_bytes=needs.memory_bytes,
        labels=needs.labels,
        resources=needs.resources,
    )


def _own_content(settings: ModelSettings) -> str | None:
    """Return the content of the daemon's copy of a model; None where it has none."""
    try:
        return content_of([*with_parts(settings.path), *settings.beside])
    except NotReadable:
        return None
