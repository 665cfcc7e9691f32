"""The watch of memory pressure, which sets the gate's level."""

from collections.abc import Callable

from car_daemon.host.event_log import log
from car_daemon.host.memory import MemorySource
from car_daemon.host.pressure import PressureGauge, PressureLimits
from car_daemon.host.timers import Periodic
from car_daemon.scheduler.gate import Gate

_PERIOD_S = 0.5


class PressureWatch:
    """Reads memory twice a second; calls `changed` after the gate got another level."""

    def __init__(
        self,
        gate: Gate,
        limits: PressureLimits,
        read_memory: MemorySource,
        changed: Callable[[], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._gauge = PressureGauge(limits)
        self._read_memory = read_memory
        self._changed = changed
        self._clock = clock
        self._readings = Periodic(_PERIOD_S, self.look)

    def start(self) -> None:
        """Begin to watch, in the running event loop."""
        self._readings.start()

    def limit(self, limits: PressureLimits) -> None:
        """Compare readings with these limits from now on."""
        self._gauge.limits = limits

    def stop(self) -> None:
        """Stop watching."""
        self._readings.stop()

    def look(self) -> None:
        """Read memory once and pass a change of the level on."""
        try:
            reading = self._read_memory()
        except OSError as error:
            log.warning("memory.unreadable", error=type(error).__name__)
            return
        percent = 100 * reading.available / reading.total
        if not self._gauge.update(percent, reading.some_percent, reading.full_percent, self._clock()):
            return
        self._gate.pressure = self._gauge.level
        log.warning(
            "memory.pressure",
            pressure=self._gauge.level,
            available_percent=round(percent, 1),
            some_percent=reading.some_percent,
            full_percent=reading.full_percent,
        )
        self._changed()
