"""Whether a model fits into memory, on the host and on GPUs, once others are unloaded, and which models have to go."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from car_base.capacity.placement import FreeMemory, NoRoom, Placement, devices_of, plan, weights_of
from car_base.host.devices import CPU, Device, overlap
from car_base.ipc.model_sizes import ModelSizes
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_budget import MemoryBudget, memory_of, taken_of, takes_devices

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
    """Return the fewest models to unload, the first of the sequence first; None if all of them are not enough.

    `holds` returns whether there is room once models are gone.
    """
    chosen: list[T] = []
    for each in evictable:
        if holds(chosen):
            break
        chosen.append(each)
    if not holds(chosen):
        return None
    # A large model that is chosen last may make others superfluous: spare the most recently used ones.
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
