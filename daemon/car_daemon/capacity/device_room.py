"""The room for a model on devices that other models share: how much of it is there once some of these are unloaded."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from car_daemon.capacity.placement import FreeMemory, NoRoom, Placement, devices_of, plan, weights_of
from car_daemon.host.devices import Device, overlap
from car_daemon.ipc.model_sizes import ModelSizes

# Slots on devices, and the layers whose experts stay on the host, negative: more is better.
Standing = tuple[int, int]
_NO_ROOM: Standing = (-1, 0)


class Demand(Struct, frozen=True):
    """A model as it is configured; `places` are the devices of its replicas on GPUs."""

    sizes: ModelSizes
    places: tuple[str, ...]
    context_tokens: int | None = None
    slots: int | None = None

    @property
    def weights(self) -> int:
        """Bytes of the weights of all replicas."""
        return len(self.places) * self.sizes.weights


def standings(demand: Demand, memory: FreeMemory) -> list[Standing]:
    """Return how much of each replica a plan puts on devices, where replicas on one device share it evenly."""
    return [
        _NO_ROOM if isinstance(found, NoRoom) else (found.gpu_layers, -len(found.host_experts))
        for found in _plans(demand, memory)
    ]


def host_weights(demand: Demand, memory: FreeMemory) -> int:
    """Return the bytes of weights of all replicas that plans leave on the host."""
    plans = [found for found in _plans(demand, memory) if isinstance(found, Placement)]
    return sum(weights_of(demand.sizes, found)[1] for found in plans)


def freed(memory: FreeMemory, taken: Mapping[str, int], host_bytes: int) -> FreeMemory:
    """Return the free memory once models gave these bytes of its devices and of the host back."""
    shared = sum(taken.get(each.name, 0) for each in memory.devices if each.shared)
    devices = tuple(_with(each, taken.get(each.name, 0)) for each in memory.devices)
    return FreeMemory(memory.host_free + host_bytes + shared, devices)


def as_good(some: Sequence[Standing], others: Sequence[Standing]) -> bool:
    """Return whether each replica has at least as much on devices as in the other plan."""
    return all(one >= other for one, other in zip(some, others, strict=True))


def _plans(demand: Demand, memory: FreeMemory) -> list[Placement | NoRoom]:
    return [_plan(demand, memory, place) for place in demand.places]


def _plan(demand: Demand, memory: FreeMemory, place: str) -> Placement | NoRoom:
    together = sum(overlap(place, other) for other in demand.places)
    devices = tuple(structs.replace(each, free=each.free // together) for each in devices_of(place, memory.devices))
    return plan(
        demand.sizes,
        FreeMemory(memory.host_free // len(demand.places), devices),
        context_tokens=demand.context_tokens,
        slots=demand.slots,
    )


def _with(device: Device, more: int) -> Device:
    return structs.replace(device, free=min(device.total, device.free + more))
