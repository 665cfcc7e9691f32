"""How short the machine is of memory, with hysteresis: up at once, down after a while below."""

from typing import Annotated

from msgspec import Meta, Struct

from car_protocol.capacity import Pressure

_LEVELS: tuple[Pressure, ...] = ("none", "some", "critical")
Percent = Annotated[float, Meta(gt=0, le=100)]


class PressureLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the levels begin, in percent, and how long it has to be better before a level is left, in seconds."""

    some_available: Percent = 10.0
    critical_available: Percent = 5.0
    some_stalled: Percent = 10.0
    critical_stalled: Percent = 10.0
    calm_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0


class PressureGauge:
    """Turns readings into a level; `now` is the caller's clock in seconds."""

    def __init__(self, limits: PressureLimits) -> None:
        # Mutable state: the limits, the level in force, and since when readings have been below it.
        self.limits = limits
        self.level: Pressure = "none"
        self._calm_since: float | None = None

    def update(self, available_percent: float, some_percent: float, full_percent: float, now: float) -> bool:
        """Take one reading; tell whether the level changed."""
        reading = self._level_of(available_percent, some_percent, full_percent)
        if _LEVELS.index(reading) >= _LEVELS.index(self.level):
            self._calm_since = None
            return self._become(reading)
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.limits.calm_s:
            return False
        self._calm_since = None
        return self._become(reading)

    def _level_of(self, available: float, some: float, full: float) -> Pressure:
        limits = self.limits
        if available < limits.critical_available or full > limits.critical_stalled:
            return "critical"
        if available < limits.some_available or some > limits.some_stalled:
            return "some"
        return "none"

    def _become(self, level: Pressure) -> bool:
        changed = level != self.level
        self.level = level
        return changed
