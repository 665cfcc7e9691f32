"""The memory of GPUs as their engines last reported it, and the pressure on it."""

from collections.abc import Iterable, Mapping

from car_daemon.capacity.placement import reserve_of
from car_daemon.host.devices import Device
from car_daemon.ipc.frames import DeviceMemory
from car_daemon.models.entry import ModelEntry
from car_protocol.capacity import Pressure

# The parts of a device's reserve, which no plan uses, below which what is free of it is short.
_PARTS: tuple[tuple[float, Pressure], ...] = ((1 / 16, "critical"), (1 / 4, "some"))
_LEVELS: tuple[Pressure, ...] = ("none", "some", "critical")


def pressure_of(memory: DeviceMemory) -> Pressure:
    """Return the pressure on a device; the host's own is that of a device that shares its memory."""
    if memory.shared:
        return "none"
    reserve = reserve_of(Device(memory.name, memory.free, memory.total))
    return next((level for part, level in _PARTS if memory.free < reserve * part), "none")


def pressure_on(entry: ModelEntry, levels: Mapping[str, Pressure]) -> Pressure:
    """Return the highest of the levels of the devices that hold a part of a model."""
    ready = [replica.ready for replica in entry.replicas if replica.ready is not None]
    names = {use.name for each in ready for use in each.devices}
    return max((levels.get(name, "none") for name in names), key=_LEVELS.index, default="none")


def pressure_by_device(entries: Iterable[ModelEntry]) -> dict[str, Pressure]:
    """Return the pressure on each device that an engine uses, by the lowest of several readings."""
    lowest: dict[str, DeviceMemory] = {}
    for reading in (each for entry in entries for replica in entry.replicas for each in replica.devices):
        if reading.name not in lowest or reading.free < lowest[reading.name].free:
            lowest[reading.name] = reading
    return {name: pressure_of(reading) for name, reading in lowest.items()}


def worse(one: Pressure, other: Pressure) -> Pressure:
    """Return the higher of two levels."""
    return max(one, other, key=_LEVELS.index)
