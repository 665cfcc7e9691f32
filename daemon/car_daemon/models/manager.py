"""Loading and unloading of models: on request, to free memory for another one, and after idle time."""

import asyncio
from collections.abc import Awaitable, Callable

from car_base.host.devices import CPU
from car_base.host.event_log import log
from car_base.host.timers import ConditionWaiters
from car_daemon.models.entry import ModelEntry
from car_daemon.models.eviction import GIVE_WAY_S, Eviction, OpenWork
from car_daemon.models.memory_budget import MemoryBudget, takes_devices
from car_daemon.models.memory_estimate import MemoryEstimate
from car_daemon.models.replica import Engines
from car_daemon.models.settings import ModelSettings

_FAULT = "the daemon failed to load the model; model.failed in its log has the error"


class _ReplicaSets(dict[ModelEntry, Engines]):
    """The engines of each model, made at its first use."""

    def __init__(self, make: Callable[[ModelEntry], Engines]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, entry: ModelEntry) -> Engines:
        self[entry] = self._make(entry)
        return self[entry]


class ModelManager:
    """Runs at most one load and one unloading of each model, shared by all that wait for it.

    `settle` returns once the device of entries without a stated one is known.
    """

    def __init__(
        self,
        replica_set: Callable[[ModelEntry], Engines],
        work: OpenWork,
        budget: MemoryBudget,
        *,
        measure: Callable[[ModelSettings], MemoryEstimate],
        clock: Callable[[], float],
        settle: Callable[[], Awaitable[None]],
        awaited: Callable[[ModelEntry], bool] = lambda _: False,
        give_way_s: float = GIVE_WAY_S,
    ) -> None:
        self._work = work
        self.budget = budget
        self._measure = measure
        self._settle = settle
        self._is_awaited: Callable[[ModelEntry], bool] = lambda entry: work.busy(entry.name) or awaited(entry)
        self._waiters = ConditionWaiters()
        self._turn = asyncio.Lock()  # models get memory one after the other, in the order of their loads
        self._device_turn = asyncio.Lock()  # and GPUs as soon as the model before has taken its part of them
        self._replica_sets = _ReplicaSets(replica_set)
        self._loads: dict[ModelEntry, asyncio.Task[None]] = {}
        self._unloads: dict[ModelEntry, asyncio.Task[None]] = {}
        self.eviction = Eviction(
            budget,
            work,
            self._waiters,
            unload=self.unload,
            unloading=self._unloads,
            is_awaited=self._is_awaited,
            give_way_s=give_way_s,
            clock=clock,
        )
        self._stopped = False

    def __repr__(self) -> str:
        moving = f"{len(self._loads)} loading, {len(self._unloads)} unloading"
        return f"<ModelManager {moving}, {self._waiters!r}, {self.budget!r}>"

    # Events.

    def changed(self, entry: ModelEntry) -> None:
        """Resume the waiters whose conditions are true after a model changed its state."""
        if entry.state == "failed" and not entry.default:
            self.budget.leave(entry)
        self._waiters.changed()

    # Commands.

    def load(self, entry: ModelEntry) -> None:
        """Begin to load a model; does nothing while it loads, is served or is being unloaded."""
        if entry.state in ("unloaded", "failed") and entry not in self._unloads and not self._stopped:
            entry.become("loading")
            self.eviction.loads(entry)
            self._loads[entry] = asyncio.create_task(self._load(entry), name=f"load {entry.name}")

    def unload(self, entry: ModelEntry) -> asyncio.Task[None]:
        """Unload a model once its engines have finished; requests that come meanwhile wait for the next load."""
        if entry not in self._unloads:
            self._unloads[entry] = asyncio.create_task(self._unload(entry), name=f"unload {entry.name}")
        return self._unloads[entry]

    def reload(self, entry: ModelEntry) -> bool:
        """Load a served model again once its engines have finished, and return True; requests that come then wait.

        Returns False for a model that is not served now.
        """
        is_served = entry.state == "ready" and entry not in self._unloads
        if is_served:
            self.unload(entry).add_done_callback(lambda _: self.load(entry))
        return is_served

    def grow(self, entry: ModelEntry) -> None:
        """Start the further engines of a loaded model that its configuration has on a cluster."""
        if entry.state in ("loading", "ready") and entry not in self._loads and entry not in self._unloads:
            self._replica_sets[entry].grow()

    def restart(self, entry: ModelEntry) -> None:
        """End the engines of a model at once and load it again; their requests run again if they can."""
        self._replica_sets[entry].restart()

    async def stop(self) -> None:
        """End all engines; nothing is loaded from now on."""
        self._stopped = True
        tasks = [*self._loads.values(), *self._unloads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica_set.stop() for replica_set in self._replica_sets.values()))

    # Loading.

    async def _load(self, entry: ModelEntry) -> None:
        try:
            await self._replica_sets[entry].stop()
            if all(place == CPU for place in entry.configured.places) or entry.configured.placed:
                await self._start(entry)
                return
            async with self._device_turn:
                await self._start(entry)
                await self._waiters.until(lambda: not takes_devices(entry))
        except Exception as error:  # noqa: BLE001 - a model must not be `loading` for ever
            log.error("model.failed", model=entry.name, error=type(error).__name__)
            entry.become("failed", reason=_FAULT)
            self._work.model_failed(entry)
        finally:
            # A model that failed may be loading again.
            if self._loads.get(entry) is asyncio.current_task():
                del self._loads[entry]

    async def _start(self, entry: ModelEntry) -> None:
        """Start the engines of a model once there is memory for it."""
        async with self._turn:
            if entry.configured.auto:
                await self._settle()
            try:
                # A placed model has its memory on other machines.
                placed = entry.configured.placed
                entry.estimate = None if placed else await asyncio.to_thread(self._measure, entry.configured)
            except Exception:  # noqa: BLE001 - the supervisor reads the same files and reports what is wrong
                entry.estimate = None
            if await self.eviction.make_room(entry):
                self.budget.enter(entry)
                self._replica_sets[entry].start()

    # Unloading.

    async def _unload(self, entry: ModelEntry) -> None:
        try:
            await self._waiters.until(lambda: entry.state != "loading" or not self._work.busy(entry.name))
            if (loading := self._loads.get(entry)) is not None:
                loading.cancel()
                await asyncio.wait([loading])
            if entry.state == "ready":
                self._work.close(entry.name)
                entry.become("draining")
                await self._waiters.until(lambda: entry.state != "draining" or not self._work.engaged(entry.name))
            await self._replica_sets[entry].stop()
            self.budget.leave(entry)
        finally:
            del self._unloads[entry]
        entry.become("unloaded")
        if self._is_awaited(entry):
            self.load(entry)
