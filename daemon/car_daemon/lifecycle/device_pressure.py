"""The memory of GPUs as their engines last reported it, and the pressure on it."""

from collections.abc import Iterable

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


def pressure_on(entry: ModelEntry) -> Pressure:
    """Return the highest pressure on the devices of a model's engines."""
    return max((pressure_of(each) for each in _readings([entry])), key=_LEVELS.index, default="none")


def pressure_by_device(entries: Iterable[ModelEntry]) -> dict[str, Pressure]:
    """Return the pressure on each device that an engine uses, by the lowest of several readings."""
    lowest: dict[str, DeviceMemory] = {}
    for reading in _readings(entries):
        if reading.name not in lowest or reading.free < lowest[reading.name].free:
            lowest[reading.name] = reading
    return {name: pressure_of(reading) for name, reading in lowest.items()}


def worse(one: Pressure, other: Pressure) -> Pressure:
    """Return the higher of two levels."""
    return max(one, other, key=_LEVELS.index)


def _readings(entries: Iterable[ModelEntry]) -> Iterable[DeviceMemory]:
    return (each for entry in entries for replica in entry.replicas for each in replica.devices)
