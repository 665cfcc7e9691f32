"""Watches memory and moves the one figure that everybody reads."""

from collections.abc import Callable

import structlog

from car_daemon.memory import MemorySource
from car_daemon.periodic import Periodic
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.pressure import PressureGauge, PressureLimits

log = structlog.get_logger()
_PERIOD_S = 0.5


class PressureWatch:
    """Reads memory twice a second; `changed` is called after the gate was told of another level."""

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
        """Watch from now on, in the running event loop."""
        self._readings.start()

    def limit(self, limits: PressureLimits) -> None:
        """Judge the readings by these limits from now on."""
        self._gauge.limits = limits

    def stop(self) -> None:
        """Stop watching."""
        self._readings.stop()

    def look(self) -> None:
        """Take one reading and pass a change on."""
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
