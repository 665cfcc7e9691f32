"""The memory that models share, of host and devices: what is left, and which models have to go for another one."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from car_base.capacity.placement import FreeMemory, NoRoom, Placement, devices_of, plan, weights_of
from car_base.host.devices import CPU, Device, overlap
from car_base.host.memory import MemorySource
from car_base.ipc.model_sizes import ModelSizes
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
        self.find_devices = find_devices
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

    @property
    def _loading_bytes(self) -> int:
        """Bytes of the models with engines that have not taken all of theirs yet."""
        return sum(
            memory_of(entry)
            for entry in self.residents
            if entry.replicas.ready is None or any(replica.state == "loading" for replica in entry.replicas)
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


T = TypeVar("T")
# How much of a replica is on GPUs: its slots there, and the layers whose experts stay on the host, negative.
OnDevices = tuple[int, int]
_NO_ROOM: OnDevices = (-1, 0)


class Fit:
    """Whether a model fits once others are unloaded: on the host as it is now, on GPUs as they were before the load.

    It fits if GPUs hold as much of it as they would without all the models that may be unloaded.
    """

    def __init__(self, budget: MemoryBudget, entry: ModelEntry, devices: Sequence[Device] = ()) -> None:
        self._budget = budget
        self._replicas = replicas_on_gpus(entry) if devices else None
        self._devices = tuple(devices)
        self._reserve = entry.configured.reserve_bytes
        self._taken = {each: taken_of(each) for each in budget.residents}
        self.needed = 0 if entry.estimate is None else entry.estimate.total
        self._most = self._on_devices([each for each in budget.residents if not each.pinned])

    @property
    def figures(self) -> dict[str, int]:
        """The needed and the free bytes of the host."""
        return {"needed_bytes": self.needed, "free_bytes": self._budget.free()}

    def holds(self, gone: Collection[ModelEntry]) -> bool:
        """Return whether the model fits once these models are unloaded."""
        free = self._budget.free() + sum(memory_of(each) for each in gone)
        return free >= self.needed and as_good(self._on_devices(gone), self._most)

    @property
    def host_weights(self) -> int | None:
        """Bytes of weights that a plan would leave on the host now; None if no device was read."""
        return None if self._replicas is None else self._replicas.host_weights(self._free_without(()))

    def _on_devices(self, gone: Collection[ModelEntry]) -> list[OnDevices]:
        return [] if self._replicas is None else self._replicas.on_devices(self._free_without(gone))

    def _free_without(self, gone: Collection[ModelEntry]) -> FreeMemory:
        """Return the free memory once these models are unloaded."""
        # Models that were unloaded since then gave their part back, too.
        left = self._taken.keys() - set(self._budget.residents) | set(gone)
        taken: Counter[str] = Counter()
        for each in left:
            taken.update(self._taken[each])
        host = max(0, self._budget.free() - self._reserve)
        return freed(FreeMemory(host, self._devices), taken, sum(memory_of(each) for each in gone))


async def fit_of(budget: MemoryBudget, entry: ModelEntry) -> Fit:
    """Return whether a model fits, with the memory of GPUs if models that may go hold some of it.

    It is read as well if the host would not hold the whole model: a plan then leaves a part there that has to fit.
    """
    replicas = replicas_on_gpus(entry)
    if replicas is None or entry.estimate is None:
        return Fit(budget, entry)
    shared = any(taken_of(each) for each in budget.residents if not each.pinned)
    short = budget.free() < entry.estimate.total + replicas.weights
    return Fit(budget, entry, await budget.find_devices() if shared or short else ())


def is_certain(budget: MemoryBudget, entry: ModelEntry) -> bool:
    """Return whether a model's needs are free, or not, however much loads onto GPUs leave on the host."""
    unplanned = sum(map(_unplanned, budget.residents))
    needed = 0 if entry.estimate is None else entry.estimate.total
    return not budget.free() - unplanned < needed <= budget.free()


def _unplanned(entry: ModelEntry) -> int:
    """Return the bytes of weights that a load onto GPUs leaves there or on the host, as its engine decides."""
    replicas = replicas_on_gpus(entry)
    if replicas is None or entry.estimate is None or entry.estimate.host_weights is not None:
        return 0
    return replicas.weights if takes_devices(entry) else 0


def fewest(holds: Callable[[Collection[T]], bool], evictable: Sequence[T]) -> list[T] | None:
    """Return the fewest models to unload, the first of the sequence first; None if all models are not enough.

    `holds` returns whether there is room once models are gone.
    """
    chosen: list[T] = []
    for each in evictable:
        if holds(chosen):
            break
        chosen.append(each)
    if not holds(chosen):
        return None
    # A large model that is chosen last may make others superfluous: spare the most recently used.
    for one in reversed(chosen):
        fewer = [each for each in chosen if each != one]
        if holds(fewer):
            chosen = fewer
    return chosen


# Plans of replicas on GPUs.


class GpuReplicas(Struct, frozen=True):
    """The replicas of a model on GPUs, as they are configured; `places` are their devices."""

    sizes: ModelSizes
    places: tuple[str, ...]
    context_tokens: int | None = None
    slots: int | None = None

    @property
    def weights(self) -> int:
        """Bytes of the weights of all replicas."""
        return len(self.places) * self.sizes.weights

    def on_devices(self, memory: FreeMemory) -> list[OnDevices]:
        """Return how much of each replica a plan puts on GPUs; replicas on one GPU share it evenly."""
        return [
            _NO_ROOM if isinstance(found, NoRoom) else (found.gpu_layers, -len(found.host_experts))
            for found in self._plans(memory)
        ]

    def host_weights(self, memory: FreeMemory) -> int:
        """Return the bytes of weights of all replicas that plans leave on the host."""
        plans = [found for found in self._plans(memory) if isinstance(found, Placement)]
        return sum(weights_of(self.sizes, found)[1] for found in plans)

    def _plans(self, memory: FreeMemory) -> list[Placement | NoRoom]:
        return [self._plan(memory, place) for place in self.places]

    def _plan(self, memory: FreeMemory, place: str) -> Placement | NoRoom:
        together = sum(overlap(place, other) for other in self.places)
        devices = tuple(structs.replace(each, free=each.free // together) for each in devices_of(place, memory.devices))
        host_free = memory.host_free // len(self.places)
        return plan(self.sizes, FreeMemory(host_free, devices), context_tokens=self.context_tokens, slots=self.slots)


def replicas_on_gpus(entry: ModelEntry) -> GpuReplicas | None:
    """Return what a model needs of GPUs; None if its configuration names none."""
    settings = entry.configured
    if entry.estimate is None or entry.estimate.sizes is None or settings.placed:
        return None
    return GpuReplicas(
        entry.estimate.sizes,
        tuple(place for place in settings.places if place != CPU),
        settings.context_tokens,
        settings.gpu_layers if settings.gpu_layers >= 0 else None,
    )


def freed(memory: FreeMemory, taken: Mapping[str, int], host_bytes: int) -> FreeMemory:
    """Return the free memory once models gave these bytes of its devices and of the host back."""
    shared = sum(taken.get(each.name, 0) for each in memory.devices if each.shared)
    devices = tuple(_with(each, taken.get(each.name, 0)) for each in memory.devices)
    return FreeMemory(memory.host_free + host_bytes + shared, devices)


def as_good(some: Sequence[OnDevices], others: Sequence[OnDevices]) -> bool:
    """Return whether each replica has at least as much on GPUs as in the other plan."""
    return all(one >= other for one, other in zip(some, others, strict=True))


def _with(device: Device, more: int) -> Device:
    return structs.replace(device, free=min(device.total, device.free + more))
