"""An engine on another machine: its launch, which waits for a place, and one TLS connection to it."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import msgspec
from msgspec import Struct, structs

from car_base import guide
from car_base.host.event_log import log
from car_base.host.files import NotReadable, content_of, with_parts
from car_base.ipc.frames import FromEngine, Load
from car_base.ipc.placing import (
    BUILT_IN,
    HANDSHAKE_S,
    EngineEnded,
    FromRelay,
    HostMemory,
    Place,
    Placed,
    context_of,
    limit_silence,
)
from car_daemon.cluster.placer import Placer
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.engines.link import Engine, EngineLink, NoPlace
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica
from car_daemon.models.settings import ModelSettings

# An engine sends a heartbeat, and its relay a reading, each second.
_SILENT_S = 3.0
_CUT_S = 5.0
# The pause between two tries to place an engine doubles from the first to the longest.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 30.0
# The exit status of an engine whose connection ended before its relay reported any.
UNKNOWN_STATUS = 255
_decode = msgspec.msgpack.Decoder(FromRelay).decode


class RemoteEngine:
    """A connected engine; its process ends with the connection. `closed` is called once with it after that."""

    def __init__(self, seat: Placed, clock: Callable[[], float], closed: Callable[["RemoteEngine"], None]) -> None:
        self.seat = seat
        self.host = seat.address
        self._clock = clock
        self._closed: Callable[[RemoteEngine], None] | None = closed  # until it was called
        self._received_at = clock()
        self.silent = False  # whether its machine sent nothing before the end
        self._status: int | None = None
        self._stopped = False
        self._link: EngineLink | None = None

    def __repr__(self) -> str:
        return f"<RemoteEngine on {self.host}>"

    @property
    def pid(self) -> None:
        """None, because the process is another machine's."""
        return

    @property
    def cut(self) -> bool:
        """Whether the connection ended by the network, the node or the seat, and not by the engine or the daemon."""
        is_closed = self._link is not None and self._link.closed.is_set() and self._link.fault is None
        return is_closed and self._status is None and (self.silent or not self._stopped)

    @property
    def fault(self) -> str | None:
        """The reason why the connection ended without the engine's status; None otherwise."""
        if self._link is not None and self._link.fault is not None:
            return self._link.fault
        return f"the connection to {self.host} was lost" if self.cut else None

    async def connect(self, receive: Callable[[FromEngine], None], memory: Callable[[HostMemory], None]) -> None:
        """Connect to the open seat; raises OSError, ssl.SSLError or TimeoutError."""

        def take(message: FromRelay) -> None:
            self._received_at = self._clock()
            match message:
                case HostMemory():
                    memory(message)
                case EngineEnded():
                    self._status = message.status
                    # It is the last frame.
                    self.kill()
                case _:
                    receive(message)

        self._link = EngineLink(take, decode=_decode)
        context = context_of(self.seat.pair, "client")
        async with asyncio.timeout(2 * HANDSHAKE_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: cast(asyncio.Protocol, self._link),
                self.seat.address,
                self.seat.port,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        limit_silence(transport, _CUT_S)

    def waits(self) -> dict[str, float]:
        """Return nothing: the threads are another machine's."""
        return {}

    def send(self, message: Struct) -> None:
        """Send one frame, a load with the paths of the node; it is dropped once the connection is gone."""
        if self._link is not None:
            self._link.send(self._there(message) if isinstance(message, Load) else message)

    async def wait(self) -> int:
        """Return the status that the relay reported once the connection is closed."""
        if self._link is not None:
            await self._link.closed.wait()
        if self._closed is not None:
            self.silent = self._clock() - self._received_at > _SILENT_S
            closed, self._closed = self._closed, None
            closed(self)
        return UNKNOWN_STATUS if self._status is None else self._status

    def kill(self) -> None:
        """End the connection at once, and with it the engine."""
        self._stopped = True
        if self._link is not None:
            self._link.abort()

    async def stop(self) -> None:
        """Close the connection, which ends the engine on its machine."""
        self.kill()
        await self.wait()

    def _there(self, load: Load) -> Load:
        return structs.replace(load, path=self.seat.path, curves=self.seat.curves)


CONNECT_ERRORS = (OSError, ssl.SSLError, TimeoutError)


Memory = Callable[[str, HostMemory], None]


class ClusterLauncher:
    """Launches the engines of one replica; a lack of places is a state of the replica, never an engine's death.

    `memory` is called with each reading of an engine's host.
    """

    def __init__(
        self, entry: ModelEntry, replica: Replica, placer: Placer, memory: Memory, *, clock: Callable[[], float]
    ) -> None:
        self._entry = entry
        self._replica = replica
        self._placer = placer
        self._memory = memory
        self._clock = clock

    async def __call__(self, receive: Callable[[FromEngine], None], _: CellKeeper | None) -> Engine:
        """Return a connected engine, which stores nothing, once a machine of the cluster has a place for it."""
        since, pause_s = self._clock(), _FIRST_PAUSE_S
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
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

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
    """Return the content of the daemon's copy of a model; None if it has none."""
    try:
        return content_of([*with_parts(settings.path), *settings.beside])
    except NotReadable:
        return None
