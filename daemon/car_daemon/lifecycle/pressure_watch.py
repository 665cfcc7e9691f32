"""The watch of memory pressure: the host's sets the gate's level, that of a GPU the levels of its engines."""

from collections.abc import Callable
from typing import Protocol

from car_base.host.event_log import log
from car_base.host.memory import MemorySource, PressureGauge, PressureLimits
from car_base.host.timers import Periodic
from car_daemon.lifecycle.device_pressure import DevicePressure
from car_daemon.scheduler.gate import Gate

_PERIOD_S = 0.5


class Reading(Protocol):
    """Memory of a machine: bytes, and percent of the time stalled."""

    @property
    def total(self) -> int:
        """Bytes."""
        ...

    @property
    def available(self) -> int:
        """Bytes."""
        ...

    @property
    def some_percent(self) -> float:
        """Of the last 10 s, in which some tasks waited for memory."""
        ...

    @property
    def full_percent(self) -> float:
        """Of the last 10 s, in which all tasks waited for memory."""
        ...


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

    def of_host(self, host: str, reading: Reading) -> None:
        """Pass on a change of another machine's level; the machines without engines are forgotten."""
        up = self._gate.hosts
        self._hosts = {name: gauge for name, gauge in self._hosts.items() if name in up}
        if host not in up:
            return
        gauge = self._hosts.setdefault(host, PressureGauge(self._gauge.limits))
        if self._updated(gauge, reading, host=host):
            self._gate.press(host, gauge.level)
            self._changed()

    def _updated(self, gauge: PressureGauge, reading: Reading, **facts: str) -> bool:
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
