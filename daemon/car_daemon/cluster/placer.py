"""The daemon's side of placing: orders to the placer process, which is started when first needed, and its answers."""

import asyncio
import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count

from msgspec import Struct, structs

from car_base.host.event_log import log
from car_base.ipc.placing import (
    Apart,
    EndEngine,
    FromPlacer,
    Join,
    Node,
    Nodes,
    Place,
    Placed,
    Unplaced,
    Waiting,
    decode_from_placer,
)
from car_base.ipc.spawning import passed_on, spawn
from car_daemon.cluster.seats import Seats
from car_daemon.engines.link import EngineLink, LinkedProcess, NoPlace, linked
from car_daemon.models.settings import Spread
from car_protocol.status import ClusterStatus, NodeStatus


async def start_placer(command: Sequence[str], receive: Callable[[FromPlacer], None]) -> LinkedProcess:
    """Return the process of `command` with the descriptor of its link; raises OSError."""
    return await linked(
        lambda theirs: spawn(command, [theirs], _environment()),
        lambda: EngineLink(receive, decode_from_placer, long=()),
    )


def _environment() -> dict[str, str]:
    """Return the variables that the placer gets: an engine's variables, and Ray's."""
    ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    return {"PYTHONSAFEPATH": "1"} | passed_on(os.environ) | ray


_AT_ONCE = 4  # placements under way for each model
COMMAND = (sys.executable, "-m", "car_placer")


class PendingPlacement(Struct, eq=False):
    """A placement under way at a process; `waits` is called with what it waits for."""

    process: LinkedProcess
    placed: asyncio.Future[Placed]
    waits: Callable[[str], None]


class Placer:
    """Has engines placed; the end of its process fails the placements under way, and engines that are up live on."""

    def __init__(self, join: Join, clock: Callable[[], float], command: Sequence[str] = COMMAND) -> None:
        self._join = join
        self._clock = clock
        self._command = command
        self.seats = Seats()
        self._numbers = count(1)
        self._placing: dict[int, PendingPlacement] = {}
        self._starting = asyncio.Lock()
        self._early: asyncio.Task[None] | None = None  # a start before the first placement
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
        self._alone: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._process: LinkedProcess | None = None
        self._watch: asyncio.Task[None] | None = None  # of that process
        self._nodes = Nodes(ray="", nodes=[])  # as reported last
        self._apart: str | None = None  # why the last process had no connection to the cluster

    def __repr__(self) -> str:
        return f"<Placer {self._process!r}, {len(self._placing)} placements, {self.seats!r}>"

    def connect(self) -> None:
        """Start the process, because its connection takes seconds, for which the first placement would wait."""
        self._early = asyncio.create_task(self._connect(), name="placer's start")

    async def place(self, order: Place, spread: Spread, waits: Callable[[str], None] = lambda _: None) -> Placed:
        """Return an open seat; raises NoPlace. `close` is called with its number once it is gone."""
        # The node of an engine decides about that of the next one, unless they are spread as Ray does it.
        async with self._turns[order.model] if spread is True else self._alone[order.model]:
            await asyncio.sleep(self.seats.pause_s(self._clock()))
            process = await self._started()
            number = next(self._numbers)
            order = structs.replace(self.seats.restrict(order, spread, self._clock()), number=number)
            seat = await self._answered(process, order, waits)
            self.seats.open(order.model, seat, self._clock())
            return seat

    def close(self, seat: Placed, *, lost: bool = False) -> None:
        """Count a seat no more; `lost` is true if its connection ended without its engine's end."""
        self.seats.close(seat.number, self._clock(), lost=lost)

    def avoid(self, node: str, why: str) -> None:
        """Prefer other nodes to one for a minute."""
        self.seats.avoid(node, why, self._clock())

    async def stop(self) -> None:
        """End the process."""
        if self._early is not None:
            await self._early
        if self._process is not None and self._watch is not None:
            await self._process.stop()
            await self._watch

    def status(self) -> ClusterStatus:
        """Return the cluster as the process reported it last."""
        is_up = self._process is not None and self._process.is_up
        return ClusterStatus(
            address=self._join.address,
            placer_pid=self._process.pid if self._process is not None and is_up else None,
            ray=self._nodes.ray or None,
            reason=self._apart,
            nodes=[self._node_status(node) for node in self._nodes.nodes],
        )

    def _node_status(self, node: Node) -> NodeStatus:
        now = self._clock()
        avoided = self.seats.avoided(now).get(node.node)
        return NodeStatus(
            address=node.address,
            alive=node.alive,
            cpus=node.cpus,
            gpus=node.gpus,
            engines=self.seats.engines_on(node),
            avoided_s=None if avoided is None else round(avoided.until - now, 1),
            reason=None if avoided is None else avoided.why,
        )

    async def _answered(self, process: LinkedProcess, order: Place, waits: Callable[[str], None]) -> Placed:
        """Send an order; return the seat. Raises NoPlace."""
        placed: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self._placing[order.number] = PendingPlacement(process, placed, waits)
        process.send(order)
        try:
            return await placed
        except asyncio.CancelledError:
            process.send(EndEngine(order.number))
            raise
        finally:
            del self._placing[order.number]

    async def _connect(self) -> None:
        with contextlib.suppress(NoPlace):  # which the status has
            await self._started()

    async def _started(self) -> LinkedProcess:
        """Return the process, which is started if none runs; raises NoPlace."""
        async with self._starting:
            if self._process is None or not self._process.is_up:
                try:
                    self._process = await start_placer(self._command, self._receive)
                except OSError as error:
                    apart = Apart(f"the placer did not start: {error.strerror or type(error).__name__}")
                    self._receive(apart)
                    raise NoPlace(apart.why) from error
                self._watch = asyncio.create_task(self._until_end(self._process), name="placer")
                self._process.send(structs.replace(self._join, seats=self.seats.numbers))
            return self._process

    async def _until_end(self, process: LinkedProcess) -> None:
        """Return once the process ended, and fail its placements."""
        status = await process.wait()
        log.info("placer.ended", status=status)
        why = self._apart or f"the placer ended with status {status}"
        for each in self._placing.values():
            # Another process may have been started before this one was gone.
            if each.process is process and not each.placed.done():
                each.placed.set_exception(NoPlace(why))

    def _receive(self, message: FromPlacer) -> None:
        match message:
            case Nodes():
                self._nodes, self._apart = message, None
            case Apart(why):
                self._apart = why
                log.warning("placer.apart", why=why)
            case _:
                self._received(message)

    def _received(self, message: Placed | Unplaced | Waiting) -> None:
        """Handle an answer to an order; a seat that comes too late closes by itself."""
        if isinstance(message, Unplaced) and message.node is not None:
            self.avoid(message.node, message.why)
        placement = self._placing.get(message.number)
        if placement is None or placement.placed.done():
            return
        match message:
            case Placed():
                placement.placed.set_result(message)
            case Unplaced():
                placement.placed.set_exception(NoPlace(message.why))
            case Waiting():
                placement.waits(message.why)
