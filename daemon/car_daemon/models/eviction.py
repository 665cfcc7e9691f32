"""Eviction: the models that may leave memory, making room for another one, and the end of idle models."""

import asyncio
import math
from collections.abc import Callable, Container
from typing import Protocol

from msgspec import structs

from car_base.host.event_log import log
from car_base.host.timers import ConditionWaiters, Timer
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_budget import Fit, MemoryBudget, fewest, fit_of, is_certain, memory_of, taken_of
from car_protocol.capacity import Pressure

# A model waits this long for others to become idle; then the least recently used get no new work and are unloaded.
GIVE_WAY_S = 10.0
_MIB = 1 << 20


class OpenWork(Protocol):
    """The work of models that has no answer yet: requests and tokenizations."""

    def busy(self, model: str) -> bool:
        """Return whether a model has requests in any state."""
        ...

    def model_failed(self, entry: ModelEntry) -> None:
        """Answer the requests that wait for a model that cannot be served."""
        ...

    def engaged(self, model: str) -> bool:
        """Return whether the engines of a model have anything to do."""
        ...

    def close(self, model: str) -> None:
        """Send nothing new to the engines of a model."""
        ...


class Eviction:
    """The models of a budget in the order of their use; `unload` unloads one, `unloading` are being unloaded."""

    def __init__(
        self,
        budget: MemoryBudget,
        work: OpenWork,
        waiters: ConditionWaiters,
        *,
        unload: Callable[[ModelEntry], asyncio.Task[None]],
        unloading: Container[ModelEntry],
        is_awaited: Callable[[ModelEntry], bool],
        give_way_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._budget = budget
        self._work = work
        self._waiters = waiters
        self.unload = unload
        self._unloading = unloading
        self._is_awaited = is_awaited
        self._give_way_s = give_way_s
        self._clock = clock
        self._used: dict[ModelEntry, float] = {}  # when each model was used last

    def used(self, entry: ModelEntry) -> None:
        """Count a use of the model: work came or ended."""
        self._used[entry] = self._clock()
        entry.touch()
        self._waiters.changed()

    def loads(self, entry: ModelEntry) -> None:
        """Count the begin of a load like a use, so that a loaded model is not the first to go."""
        self._used[entry] = self._clock()

    def used_at(self, entry: ModelEntry) -> float:
        """Return when work of a model came or ended last, in seconds of the clock."""
        return self._used.get(entry, 0.0)

    def idle(self) -> list[ModelEntry]:
        """Return the models that may be unloaded, the least recently used one first."""
        return self._by_use(self._is_idle)

    def _by_use(self, may_go: Callable[[ModelEntry], bool]) -> list[ModelEntry]:
        going = [entry for entry in self._budget.residents if may_go(entry)]
        return sorted(going, key=lambda each: (self.used_at(each), each.name))

    async def make_room(self, entry: ModelEntry) -> bool:
        """Unload others until the model fits; return False if that is impossible or it is not awaited any more.

        The default model waits for no others, and is loaded whether it fits or not. Others wait for a load onto GPUs if
        they fit only if enough of it is there.
        """
        if entry.estimate is None:
            return True
        if not entry.default and not await self._is_certain(entry):
            return False
        give_way_at = self._clock() + self._give_way_s
        fit = await fit_of(self._budget, entry)
        while True:
            chosen = fewest(fit.holds, self.idle())
            figures = {"model": entry.name, **fit.figures}
            if chosen == [] or (chosen is None and entry.default):
                log.debug("model.fits", **figures)
                entry.estimate = structs.replace(entry.estimate, host_weights=fit.host_weights)
                return True
            if chosen is None and fewest(fit.holds, self._by_use(_may_go)) is None:
                self._refuse(entry, fit)
                return False
            if chosen is None:
                left_s = max(0.0, give_way_at - self._clock())
                log.debug("model.waits", why="no model that may be unloaded is idle", left_s=left_s, **figures)
                if not await self._residents_changed(entry, left_s):
                    await self._evict(fewest(fit.holds, self._by_use(_may_go)) or [], entry)
            else:
                await self._evict(chosen, entry)
            if not entry.default and self._abandoned(entry):
                return False

    async def _is_certain(self, entry: ModelEntry) -> bool:
        """Return once loads onto GPUs decide nothing about the room for a model; False if it is not awaited then."""
        if is_certain(self._budget, entry):
            return True
        log.debug("model.waits", model=entry.name, why="a load onto GPUs may leave too little on the host")
        await self._waiters.until(lambda: is_certain(self._budget, entry) or not self._is_awaited(entry))
        return not self._abandoned(entry)

    def _abandoned(self, entry: ModelEntry) -> bool:
        """Return whether nothing awaits a model any more, which then is not loaded."""
        if self._is_awaited(entry):
            return False
        log.debug("model.not_awaited", model=entry.name)
        entry.become("unloaded")
        return True

    def _refuse(self, entry: ModelEntry, fit: Fit) -> None:
        figures = fit.figures
        needed, free = figures["needed_bytes"], figures["free_bytes"]
        log.warning("model.no_room", model=entry.name, **figures)
        reason = (
            f"not enough memory is free: the model needs {-(-needed // _MIB)} MiB, {free // _MIB} MiB are free; "
            "unload or unpin another model, or raise budget_bytes"
        )
        entry.become("unloaded", reason=reason, shortage=figures)
        self._work.model_failed(entry)

    async def _residents_changed(self, entry: ModelEntry, timeout_s: float) -> bool:
        """Wait until other models may be unloaded, or this one is not awaited; return False at the timeout."""
        before = self._idleness()
        return await self._waiters.until(lambda: self._idleness() != before or not self._is_awaited(entry), timeout_s)

    async def _evict(self, entries: list[ModelEntry], newcomer: ModelEntry) -> None:
        for entry in entries:
            idle_s = round(self._clock() - self.used_at(entry), 1)
            memory = {"bytes": memory_of(entry), "device_bytes": sum(taken_of(entry).values())}
            log.info("model.evicted", model=entry.name, **memory, idle_s=idle_s, in_favour_of=newcomer.name)
        await asyncio.gather(*(asyncio.shield(self.unload(entry)) for entry in entries))

    def _idleness(self) -> list[tuple[ModelEntry, bool]]:
        return [(entry, self._is_idle(entry)) for entry in self._budget.residents]

    def _is_idle(self, entry: ModelEntry) -> bool:
        may_go = not entry.pinned and entry.state == "ready" and entry not in self._unloading
        return may_go and not self._work.busy(entry.name)


def _may_go(entry: ModelEntry) -> bool:
    return not entry.pinned


# The part of the keep-alive time that is left under memory pressure.
_PART: dict[Pressure, float] = {"none": 1.0, "some": 0.1, "critical": 0.0}


class KeepAlive:
    """Unloads models that were idle for `keep_alive_s`, sooner under memory pressure; `clock` in seconds.

    `pressure` is that on the host and on the devices of a model.
    """

    def __init__(
        self, models: Eviction, pressure: Callable[[ModelEntry], Pressure], *, clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._pressure = pressure
        self._clock = clock
        self._timer = Timer(self.look)
        self._armed_for = math.inf  # in seconds of `clock`

    def __repr__(self) -> str:
        return f"<KeepAlive next_in_s={self._armed_for - self._clock():g}>"

    def changed(self) -> None:
        """Arm the timer anew after models became idle or the pressure changed."""
        idle = self._models.idle()
        if not idle:
            return
        entry = min(idle, key=self._ends_at)
        next_at = self._ends_at(entry)
        if next_at < self._armed_for:
            self._armed_for = next_at
            delay_s = max(0.0, next_at - self._clock())
            self._timer.arm(delay_s)
            log.debug("keep_alive.armed", model=entry.name, after_s=delay_s, pressure=self._pressure(entry))

    def look(self) -> None:
        """Unload the models whose keep-alive time is over, and arm the timer for the next one."""
        self.stop()
        for entry in self._models.idle():
            if self._ends_at(entry) <= self._clock():
                idle_s = round(self._clock() - self._models.used_at(entry), 1)
                kept_s = entry.configured.keep_alive_s
                log.info(
                    "model.idle", model=entry.name, idle_s=idle_s, keep_alive_s=kept_s, pressure=self._pressure(entry)
                )
                self._models.unload(entry)
        self.changed()

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
        self._armed_for = math.inf

    def _ends_at(self, entry: ModelEntry) -> float:
        return self._models.used_at(entry) + entry.configured.keep_alive_s * _PART[self._pressure(entry)]
