"""The level of memory pressure, with hysteresis: raised at once, lowered after a calm interval."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from car_protocol.capacity import Pressure

_LEVELS: tuple[Pressure, ...] = ("none", "some", "critical")
Percent = Annotated[float, Meta(gt=0, le=100)]


def highest(levels: Iterable[Pressure]) -> Pressure:
    """Return the highest of some levels; `none` without any."""
    return max(levels, key=_LEVELS.index, default="none")


class PressureLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds of the levels in percent, and the calm interval before a level is lowered in seconds."""

    some_available: Percent = 10.0
    critical_available: Percent = 5.0
    some_stalled: Percent = 10.0
    critical_stalled: Percent = 10.0
    calm_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0


class PressureGauge:
    """Derives a level from readings; `now` is the caller's clock in seconds."""

    def __init__(self, limits: PressureLimits) -> None:
        self.limits = limits
        self.level: Pressure = "none"
        self._calm_since: float | None = None  # readings have been below the level since then

    def update(self, available_percent: float, some_percent: float, full_percent: float, now: float) -> bool:
        """Apply a reading; return True if the level changed."""
        limits = self.limits
        reading: Pressure = "none"
        if available_percent < limits.critical_available or full_percent > limits.critical_stalled:
            reading = "critical"
        elif available_percent < limits.some_available or some_percent > limits.some_stalled:
            reading = "some"
        if _LEVELS.index(reading) >= _LEVELS.index(self.level):
            self._calm_since = None
            return self._become(reading)
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.limits.calm_s:
            return False
        self._calm_since = None
        return self._become(reading)

    def _become(self, level: Pressure) -> bool:
        changed = level != self.level
        self.level = level
        return changed
