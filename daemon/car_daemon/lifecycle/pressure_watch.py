"""The watch of memory pressure: the host's sets the gate's level, that of a GPU the levels of its engines."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from car_base.capacity.placement import reserve_of
from car_base.host.devices import Device
from car_base.host.event_log import log
from car_base.host.memory import MemoryReading, MemorySource, PressureGauge, PressureLimits, highest
from car_base.host.timers import Periodic
from car_base.ipc.frames import DeviceMemory
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica
from car_daemon.scheduler.gate import Gate
from car_protocol.capacity import Pressure

if TYPE_CHECKING:
    from car_base.ipc.placing import HostMemory  # a daemon without a cluster imports no frames of placing

# Percent of a device's reserve, which no plan uses, below which what is free of it is short.
_SOME, _CRITICAL = 25.0, 6.25


class DevicePressure:
    """The level of each GPU that an engine of this machine uses, lowered after calm seconds as the host's is.

    A device that shares the host's memory has no level of its own. `clock` is in seconds.
    """

    def __init__(self, entries: Iterable[ModelEntry], limits: PressureLimits, clock: Callable[[], float]) -> None:
        self._entries = entries
        self._limits = limits
        self._clock = clock
        self._gauges: dict[str, PressureGauge] = {}  # by the device's name

    def limit(self, limits: PressureLimits) -> None:
        """Lower levels after the calm seconds of these limits."""
        self._limits = limits
        for gauge in self._gauges.values():
            gauge.limits = _of_device(limits)

    def look(self) -> bool:
        """Compare the last readings with the reserves; return whether a level changed, which is logged."""
        lowest = self._lowest()
        self._gauges = {name: self._gauges.get(name) or PressureGauge(_of_device(self._limits)) for name in lowest}
        changed = [name for name, reading in lowest.items() if self._updated(self._gauges[name], reading)]
        for name in changed:
            free_mib = lowest[name].free >> 20
            log.warning("device.pressure", device=name, pressure=self._gauges[name].level, free_mib=free_mib)
        self._apply()
        return bool(changed)

    def by_engine(self) -> dict[int, Pressure]:
        """Return the level of each engine of this machine, by its number."""
        return {each.engine: each.pressure for each in self._replicas() if each.engine is not None}

    def _apply(self) -> None:
        for replica in self._replicas():
            replica.pressures = {each: self._gauges[each].level for each in _used(replica) if each in self._gauges}
        for entry in self._entries:
            entry.device_pressure = highest(replica.pressure for replica in entry.replicas)

    def _replicas(self) -> Iterator[Replica]:
        return (replica for entry in self._entries for replica in entry.replicas if replica.host is None)

    def _lowest(self) -> dict[str, DeviceMemory]:
        """Return the lowest reading of each device with memory of its own that holds a part of a model."""
        lowest: dict[str, DeviceMemory] = {}
        used = {name for replica in self._replicas() for name in _used(replica)}
        for reading in (each for replica in self._replicas() for each in replica.devices):
            known = lowest.get(reading.name, reading)
            if reading.name in used and not reading.shared and reading.free <= known.free:
                lowest[reading.name] = reading
        return lowest

    def _updated(self, gauge: PressureGauge, reading: DeviceMemory) -> bool:
        reserve = reserve_of(Device(reading.name, reading.free, reading.total))
        return gauge.update(100 * reading.free / reserve, 0.0, 0.0, self._clock())


def _of_device(limits: PressureLimits) -> PressureLimits:
    return structs.replace(limits, some_available=_SOME, critical_available=_CRITICAL)


def _used(replica: Replica) -> list[str]:
    """Return the names of the devices that hold a part of a replica's model."""
    return [] if replica.ready is None else [use.name for use in replica.ready.devices if use.slots]


_PERIOD_S = 0.5


class PressureWatch:
    """Reads memory twice a second; calls `changed` after the gate, an engine of it or a device got another level."""

    def __init__(
        self,
        gate: Gate,
        limits: PressureLimits,
        read_memory: MemorySource,
        changed: Callable[[], None],
        *,
        devices: DevicePressure,
        clock: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._gauge = PressureGauge(limits)
        self._read_memory = read_memory
        self._changed = changed
        self._devices = devices
        self._clock = clock
        self._hosts: dict[str, PressureGauge] = {}  # of other machines with engines, by address
        self._readings = Periodic(_PERIOD_S, self.look)

    def start(self) -> None:
        """Begin to watch, in the running event loop."""
        self._readings.start()

    def limit(self, limits: PressureLimits) -> None:
        """Compare readings with these limits from now on."""
        for gauge in (self._gauge, *self._hosts.values()):
            gauge.limits = limits
        self._devices.limit(limits)

    def stop(self) -> None:
        """Stop watching."""
        self._readings.stop()

    def look(self) -> None:
        """Read memory once and pass changes of levels on."""
        self._look_at_devices()
        try:
            reading = self._read_memory()
        except OSError as error:
            log.warning("memory.unreadable", error=type(error).__name__)
            return
        if self._updated(self._gauge, reading):
            self._gate.pressure = self._gauge.level
            self._changed()

    def of_host(self, host: str, reading: "HostMemory") -> None:
        """Pass on a change of another machine's level; the machines without engines are forgotten."""
        up = self._gate.hosts
        self._hosts = {name: gauge for name, gauge in self._hosts.items() if name in up}
        if host not in up:
            return
        gauge = self._hosts.setdefault(host, PressureGauge(self._gauge.limits))
        if self._updated(gauge, reading, host=host):
            self._gate.press(host, gauge.level)
            self._changed()

    def _updated(self, gauge: PressureGauge, reading: "MemoryReading | HostMemory", **facts: str) -> bool:
        """Return whether a reading changed the level, which is logged."""
        percent = 100 * reading.available / max(1, reading.total)
        if not gauge.update(percent, reading.some_percent, reading.full_percent, self._clock()):
            return False
        log.warning(
            "memory.pressure",
            pressure=gauge.level,
            available_percent=round(percent, 1),
            some_percent=reading.some_percent,
            full_percent=reading.full_percent,
            **facts,
        )
        return True

    def _look_at_devices(self) -> None:
        changed = self._devices.look()
        # Also without a change, because an engine may have become ready since.
        if self._gate.press_engines(self._devices.by_engine()) or changed:
            self._changed()
