"""The daemon's side of the placer: the process that places engines on a cluster, started when first needed."""

import asyncio
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count

from msgspec import structs

from car_daemon.engines.link import EngineLink, NoPlace
from car_daemon.host.event_log import log
from car_daemon.ipc.placing import End, FromPlacer, Join, Place, Placed, Unplaced, decode_from_placer
from car_daemon.ipc.spawning import passed_on

# A cluster goes on offering a node for about as long after it was cut off.
_AVOID_S = 60.0
_AT_ONCE = 4  # placements under way for each model
_END_S = 2.0
COMMAND = (sys.executable, "-m", "car_daemon.placer")


class Placer:
    """Owns the placer process; its end fails the placements under way, and engines that are up live on."""

    def __init__(self, join: Join, clock: Callable[[], float], command: Sequence[str] = COMMAND) -> None:
        self._join = join
        self._clock = clock
        self._command = command
        self._numbers = count(1)
        self._placing: dict[int, asyncio.Future[Placed]] = {}
        self._avoided: dict[str, float] = {}  # until when each node is
        self._starting = asyncio.Lock()
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
        self._process: asyncio.subprocess.Process | None = None
        self._link: EngineLink | None = None
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"<Placer pid={pid}, {len(self._placing)} placements, avoids {sorted(self._avoided)}>"

    async def place(self, order: Place) -> Placed:
        """Return an open seat; raises NoPlace."""
        async with self._turns[order.model]:
            link = await self._started()
            number = next(self._numbers)
            placed: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
            self._placing[number] = placed
            link.send(structs.replace(order, number=number, avoid=self._avoid()))
            try:
                await placed
            except asyncio.CancelledError:
                link.send(End(number))
                raise
            finally:
                del self._placing[number]
            return placed.result()

    def avoid(self, node: str) -> None:
        """Place nothing on a node for a minute, because it is cut off or refused an engine."""
        self._avoided[node] = self._clock() + _AVOID_S

    async def stop(self) -> None:
        """End the process."""
        if self._process is None or self._link is None:
            return
        self._link.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
        if self._watch is not None:
            await self._watch

    def _avoid(self) -> list[str]:
        now = self._clock()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        return list(self._avoided)

    async def _started(self) -> EngineLink:
        """Return the link to the process, which is started where none runs; raises NoPlace."""
        async with self._starting:
            if self._link is None or self._link.closed.is_set():
                try:
                    await self._start()
                except OSError as error:
                    raise NoPlace(f"the placer did not start: {error.strerror or type(error).__name__}") from error
            assert self._link is not None
            return self._link

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        _, self._link = await asyncio.get_running_loop().create_unix_connection(
            lambda: EngineLink(self._receive, decode_from_placer), sock=ours
        )
        self._link.send(self._join)
        self._watch = asyncio.create_task(self._until_end(self._process, self._link), name="placer")

    async def _until_end(self, process: asyncio.subprocess.Process, link: EngineLink) -> None:
        """Fail the placements of a process that ended."""
        await link.closed.wait()
        if link.fault is not None:
            process.kill()
        status = await process.wait()
        log.warning("placer.ended", status=status, placements=len(self._placing))
        for placed in self._placing.values():
            if not placed.done():
                placed.set_exception(NoPlace(f"the placer ended with status {status}"))

    def _receive(self, message: FromPlacer) -> None:
        placed = self._placing.get(message.number)
        if isinstance(message, Unplaced) and message.node is not None:
            self.avoid(message.node)
        if placed is None or placed.done():
            # A seat without a client closes by itself.
            return
        if isinstance(message, Placed):
            placed.set_result(message)
        else:
            placed.set_exception(NoPlace(message.why))


def _environment() -> dict[str, str]:
    """Return the variables that the placer gets: those of an engine, and Ray's."""
    ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    return {"PYTHONSAFEPATH": "1"} | passed_on(os.environ) | ray
