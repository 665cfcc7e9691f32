"""Keeps models in memory: loads those that are asked for, unloads those that have to go or are used no more."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from car_daemon.models.changes import Changes
from car_daemon.models.crew import Supervisor
from car_daemon.models.entry import NO_ROOM, ModelEntry, ModelSettings
from car_daemon.models.eviction import Resident, choose
from car_daemon.models.footprint import Footprint
from car_daemon.models.room import Room, footprint_of

log = structlog.get_logger()
# So long a model waits for others to run out of work; then they take no more until it has had its turn.
_PATIENCE_S = 10.0
_FAULT = "the daemon failed to load it; its log says why"


class Work(Protocol):
    """What is asked of models."""

    def busy(self, model: str) -> bool:
        """Tell whether anything is asked of a model."""
        ...

    def engaged(self, model: str) -> bool:
        """Tell whether the engine of a model has anything to do."""
        ...

    def close(self, model: str) -> None:
        """Give an engine nothing new any more."""
        ...

    def model_failed(self, entry: ModelEntry) -> None:
        """Answer what waits for a model that cannot be served."""
        ...


class ModelKeeper:
    """One load and one unloading a model at most; whoever wants the same waits for the same."""

    def __init__(
        self,
        crew: Callable[[ModelEntry], Supervisor],
        work: Work,
        room: Room,
        *,
        measure: Callable[[ModelSettings], Footprint],
        clock: Callable[[], float],
        wanted: Callable[[ModelEntry], bool] = lambda _: False,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._crew = crew
        self._work = work
        self.room = room
        self._measure = measure
        self._clock = clock
        self._wanted = wanted
        self._patience_s = patience_s
        self._changes = Changes()
        # Models get their room one after the other, in the order in which they were asked for.
        self._turn = asyncio.Lock()
        # Mutable state besides the above: the engines of each model, what loads and unloads now, when each model was
        # used last, and whether the daemon ends.
        self._crews: dict[ModelEntry, Supervisor] = {}
        self._loads: dict[ModelEntry, asyncio.Task[None]] = {}
        self._unloads: dict[ModelEntry, asyncio.Task[None]] = {}
        self._used: dict[ModelEntry, float] = {}
        self._stopped = False

    # What others tell.

    def used(self, entry: ModelEntry) -> None:
        """Take note of work that came or ended."""
        self._used[entry] = self._clock()
        entry.touch()
        self._changes.happened()

    def changed(self, entry: ModelEntry) -> None:
        """Take note of another state."""
        if entry.state == "failed" and not entry.default:
            self.room.leave(entry)
        self._changes.happened()

    # What others want.

    def load(self, entry: ModelEntry) -> None:
        """Have a model loaded that is not; nothing happens to one that loads, is served or is about to go."""
        if entry.state in ("unloaded", "failed") and entry not in self._unloads and not self._stopped:
            entry.become("loading")
            self._used[entry] = self._clock()
            self._loads[entry] = asyncio.create_task(self._load(entry), name=f"load {entry.name}")

    def unload(self, entry: ModelEntry) -> asyncio.Task[None]:
        """Have a model finish what its engine has, then go; what comes meanwhile waits until it is loaded again."""
        if entry not in self._unloads:
            self._unloads[entry] = asyncio.create_task(self._unload(entry), name=f"unload {entry.name}")
        return self._unloads[entry]

    def idle(self) -> list[ModelEntry]:
        """Return the models that may go, the least recently used one first."""
        may_go = [entry for entry in self.room.residents if self._is_idle(entry)]
        return sorted(may_go, key=self.used_at)

    def used_at(self, entry: ModelEntry) -> float:
        """Return when work of a model came or ended last."""
        return self._used.get(entry, 0.0)

    async def stop(self) -> None:
        """End everything; nothing is loaded any more."""
        self._stopped = True
        tasks = [*self._loads.values(), *self._unloads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(crew.stop() for crew in self._crews.values()))

    # Loading.

    async def _load(self, entry: ModelEntry) -> None:
        try:
            await self._crew_of(entry).stop()
            async with self._turn:
                await self._admit(entry)
        except Exception as error:  # noqa: BLE001 - a model must not be `loading` for ever
            log.error("model.failed", model=entry.name, error=type(error).__name__)  # noqa: TRY400
            entry.become("failed", reason=_FAULT)
            self._work.model_failed(entry)
        finally:
            self._loads.pop(entry, None)

    async def _admit(self, entry: ModelEntry) -> None:
        entry.footprint = await self._measured(entry)
        if await self._make_room(entry):
            self.room.enter(entry)
            self._crew_of(entry).start()

    async def _measured(self, entry: ModelEntry) -> Footprint | None:
        """Return what it will take; None where that cannot be known, which its supervisor will find too, and say."""
        try:
            return await asyncio.to_thread(self._measure, entry.configured)
        except Exception:  # noqa: BLE001 - whatever it is, the supervisor meets it again and counts it
            return None

    async def _make_room(self, entry: ModelEntry) -> bool:
        """Unload others until there is room; where that cannot be, or nobody wants it any more, unload this one."""
        give_way_at = self._clock() + self._patience_s
        while entry.footprint is not None and not entry.default:
            needed, free = entry.footprint.total, self.room.free()
            chosen = self._choose(needed, free, self._is_idle)
            if chosen == []:
                return True
            if chosen is None and self._choose(needed, free, lambda each: not each.pinned) is None:
                self._refuse(entry, needed, free)
                return False
            if chosen is not None:
                await self._put_out(chosen)
            elif not await self._others_idle(entry, give_way_at - self._clock()):
                await self._put_out(self._choose(needed, free, lambda each: not each.pinned) or [])
            if not self._is_wanted(entry):
                entry.become("unloaded")
                return False
        return True

    def _choose(self, needed: int, free: int, may_go: Callable[[ModelEntry], bool]) -> list[ModelEntry] | None:
        entries = {entry.name: entry for entry in self.room.residents}
        chosen = choose(
            needed,
            free,
            [Resident(name, footprint_of(each), self.used_at(each), may_go(each)) for name, each in entries.items()],
        )
        return None if chosen is None else [entries[name] for name in chosen]

    def _refuse(self, entry: ModelEntry, needed: int, free: int) -> None:
        log.warning("model.no_room", model=entry.name, needed_bytes=needed, free_bytes=free)
        entry.become("unloaded", reason=NO_ROOM, shortage={"needed_bytes": needed, "free_bytes": free})
        self._work.model_failed(entry)

    async def _others_idle(self, entry: ModelEntry, patience_s: float) -> bool:
        """Wait for another model that may go, or for nobody to want this one; tell whether either came in time."""
        before = self._standing()
        return await self._changes.until(
            lambda: self._standing() != before or not self._is_wanted(entry), max(0.0, patience_s)
        )

    async def _put_out(self, entries: list[ModelEntry]) -> None:
        for entry in entries:
            log.info("model.evicted", model=entry.name)
        await asyncio.gather(*(asyncio.shield(self.unload(entry)) for entry in entries))

    def _standing(self) -> list[tuple[ModelEntry, bool]]:
        return [(entry, self._is_idle(entry)) for entry in self.room.residents]

    def _is_wanted(self, entry: ModelEntry) -> bool:
        return self._work.busy(entry.name) or self._wanted(entry)

    def _is_idle(self, entry: ModelEntry) -> bool:
        may_go = not entry.pinned and entry.state == "ready" and entry not in self._unloads
        return may_go and not self._work.busy(entry.name)

    def _crew_of(self, entry: ModelEntry) -> Supervisor:
        if entry not in self._crews:
            self._crews[entry] = self._crew(entry)
        return self._crews[entry]

    # Unloading.

    async def _unload(self, entry: ModelEntry) -> None:
        try:
            await self._finish(entry)
            await self._crew_of(entry).stop()
            self.room.leave(entry)
        finally:
            del self._unloads[entry]
        entry.become("unloaded")
        if self._is_wanted(entry):
            self.load(entry)

    async def _finish(self, entry: ModelEntry) -> None:
        """Return once the engine of a model has nothing to do, or there is none."""
        await self._changes.until(lambda: entry.state != "loading" or not self._work.busy(entry.name))
        if (loading := self._loads.get(entry)) is not None:
            loading.cancel()
            await asyncio.wait([loading])
        if entry.state == "ready":
            self._work.close(entry.name)
            entry.become("draining")
            await self._changes.until(lambda: entry.state != "draining" or not self._work.engaged(entry.name))
