"""The memory that models share, of host and devices: the models in it, what is left, and which go for another one."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from msgspec import Struct

from car_daemon.capacity.device_room import Demand, Standing, as_good, freed, host_weights, standings
from car_daemon.capacity.placement import FreeMemory
from car_daemon.host.devices import CPU, Device
from car_daemon.host.memory import MemorySource
from car_daemon.models.entry import ModelEntry


class MemoryBudget:
    """Counts a model from `enter` until `leave`.

    `budget_bytes` is the most of the host that all models may use together; None is all free memory. `find_devices`
    returns the GPUs with their memory now.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        read_memory: MemorySource,
        find_devices: Callable[[], Awaitable[Sequence[Device]]],
    ) -> None:
        self.budget_bytes = budget_bytes
        self._read_memory = read_memory
        self._find_devices = find_devices
        self._residents: dict[str, ModelEntry] = {}  # the models that have an engine, or are about to

    def __repr__(self) -> str:
        used = sum(memory_of(entry) for entry in self.residents)
        return f"<MemoryBudget {used}/{self.budget_bytes} bytes, {len(self._residents)} models>"

    @property
    def residents(self) -> Iterable[ModelEntry]:
        """The models that count."""
        return self._residents.values()

    def enter(self, entry: ModelEntry) -> None:
        """Count a model, and set the bytes that the KV cache of each of its engines may use."""
        replicas = len(entry.configured.places)
        entry.budget_bytes = None
        # Because engines that load at the same time would each find the same memory free.
        together = replicas > 1 or self._loading_bytes > 0
        if entry.estimate is not None and (self.budget_bytes is not None or together):
            entry.budget_bytes = max(0, self.free() - entry.estimate.total_with(0)) // replicas
        self._residents[entry.name] = entry

    def leave(self, entry: ModelEntry) -> None:
        """Stop counting a model."""
        self._residents.pop(entry.name, None)

    def free_for(self, entry: ModelEntry) -> int:
        """Return the bytes that a model may use; the bytes it has already are free for it."""
        return self.free() + (memory_of(entry) if entry.name in self._residents else 0)

    def free(self) -> int:
        """Return the bytes that one more model may use."""
        free = self._read_memory().available - self._loading_bytes
        if self.budget_bytes is not None:
            free = min(free, self.budget_bytes - sum(memory_of(entry) for entry in self.residents))
        return max(0, free)

    def is_certain_for(self, entry: ModelEntry) -> bool:
        """Return whether a model's needs are free, or not, however much loads onto GPUs leave on the host."""
        unplanned = sum(map(_unplanned, self.residents))
        needed = 0 if entry.estimate is None else entry.estimate.total
        return not self.free() - unplanned < needed <= self.free()

    async def room_for(self, entry: ModelEntry) -> "Room":
        """Return the room for a model, on devices as well where it depends on what others that may go hold of them.

        So it does where the host would not hold the whole model: a plan then leaves a part there that has to fit.
        """
        demand = demand_of(entry)
        if demand is None or entry.estimate is None:
            return Room(self, entry, None, ())
        shared = any(taken_of(each) for each in self.residents if not each.pinned)
        short = self.free() < entry.estimate.total + demand.weights
        return Room(self, entry, demand, await self._find_devices() if shared or short else ())

    @property
    def _loading_bytes(self) -> int:
        """Bytes of the models with engines that have not taken all of theirs yet."""
        return sum(
            memory_of(entry)
            for entry in self.residents
            if entry.replicas.ready is None or any(replica.state == "loading" for replica in entry.replicas)
        )


class Room:
    """The room for a model: on the host now, on devices as they were when its load began.

    `wanted` is how much of it devices hold without all models that may be unloaded: with fewer of them gone, it does
    not fit until as much is there.
    """

    def __init__(
        self, budget: MemoryBudget, entry: ModelEntry, demand: Demand | None, devices: Sequence[Device]
    ) -> None:
        self._budget = budget
        self._demand = demand if devices else None
        self._devices = tuple(devices)
        self._reserve = entry.configured.reserve_bytes
        self._taken = {each: taken_of(each) for each in budget.residents}
        self.needed = 0 if entry.estimate is None else entry.estimate.total
        self._wanted = self._standings([each for each in budget.residents if not each.pinned])

    @property
    def figures(self) -> dict[str, int]:
        """The needed and the free bytes of the host."""
        return {"needed_bytes": self.needed, "free_bytes": self._budget.free()}

    def fits(self, gone: Collection[ModelEntry]) -> bool:
        """Return whether the model fits once these models are unloaded."""
        free = self._budget.free() + sum(memory_of(each) for each in gone)
        return free >= self.needed and as_good(self._standings(gone), self._wanted)

    @property
    def host_weights(self) -> int | None:
        """Bytes of weights that a plan would leave on the host now; None where no device was read."""
        return None if self._demand is None else host_weights(self._demand, self._memory_without(()))

    def _standings(self, gone: Collection[ModelEntry]) -> list[Standing]:
        return [] if self._demand is None else standings(self._demand, self._memory_without(gone))

    def _memory_without(self, gone: Collection[ModelEntry]) -> FreeMemory:
        """Return the free memory once these models are unloaded."""
        # Models that were unloaded since then gave their part back, too.
        left = self._taken.keys() - set(self._budget.residents) | set(gone)
        taken: Counter[str] = Counter()
        for each in left:
            taken.update(self._taken[each])
        host = max(0, self._budget.free() - self._reserve)
        return freed(FreeMemory(host, self._devices), taken, sum(memory_of(each) for each in gone))


def demand_of(entry: ModelEntry) -> Demand | None:
    """Return what a model needs of GPUs; None where its configuration names none."""
    settings = entry.configured
    if entry.estimate is None or entry.estimate.sizes is None or settings.placed:
        return None
    return Demand(
        entry.estimate.sizes,
        tuple(place for place in settings.places if place != CPU),
        settings.context_tokens,
        settings.gpu_layers if settings.gpu_layers >= 0 else None,
    )


def taken_of(entry: ModelEntry) -> dict[str, int]:
    """Return the bytes that a model took of each GPU by its loads."""
    taken: Counter[str] = Counter()
    for ready in (replica.ready for replica in entry.replicas if replica.ready is not None):
        taken.update({use.name: use.taken for use in ready.devices if use.slots})
    return {name: size for name, size in taken.items() if size}


def memory_of(entry: ModelEntry) -> int:
    """Return the bytes of a model: its estimate, with the real size of the KV caches once all its engines are up."""
    if entry.estimate is None or entry.settings.placed:
        return 0
    ready = [replica.ready for replica in entry.replicas if replica.ready is not None]
    planned = 0 if len(ready) == len(list(entry.replicas)) else entry.estimate.host_weights or 0
    host_weights = max(planned, sum(each.host_weights for each in ready))
    on_host = [replica.ready for replica in entry.replicas if replica.device == CPU]
    allocated = [each.kv_bytes + each.mask_bytes for each in on_host if each is not None]
    if len(allocated) < len(on_host) or not on_host:
        return entry.estimate.total + host_weights
    return entry.estimate.total_with(sum(allocated)) + host_weights


def takes_devices(entry: ModelEntry) -> bool:
    """Return whether a replica is being loaded onto a GPU."""
    return any(replica.state == "loading" and replica.device != CPU for replica in entry.replicas)


def _unplanned(entry: ModelEntry) -> int:
    """Return the bytes of weights that a load onto GPUs leaves there or on the host, as its engine decides."""
    demand = demand_of(entry)
    if demand is None or entry.estimate is None or entry.estimate.host_weights is not None or not takes_devices(entry):
        return 0
    return demand.weights


class Resident(Struct, frozen=True):
    """A model in memory; `used_at` in seconds of any clock, `evictable` where it may be unloaded."""

    name: str
    used_at: float
    evictable: bool


def choose(fits: Callable[[Collection[str]], bool], residents: Sequence[Resident]) -> list[str] | None:
    """Return the fewest models to unload, least recently used first; None where all of them are not enough.

    `fits` returns whether there is room once models of these names are gone.
    """
    chosen: list[str] = []
    for resident in sorted(residents, key=lambda each: (each.used_at, each.name)):
        if fits(chosen):
            break
        if resident.evictable:
            chosen.append(resident.name)
    if not fits(chosen):
        return None
    # A large model that is chosen last may make others superfluous: spare the most recently used ones.
    for name in reversed(chosen):
        fewer = [each for each in chosen if each != name]
        if fits(fewer):
            chosen = fewer
    return chosen
