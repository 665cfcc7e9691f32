"""Unloading of idle models after their keep-alive time."""

import math
from collections.abc import Callable
from typing import Protocol

from car_base.host.event_log import log
from car_base.host.timers import Timer
from car_daemon.models.entry import ModelEntry
from car_protocol.capacity import Pressure

# The part of the keep-alive time that is left under memory pressure.
_PART: dict[Pressure, float] = {"none": 1.0, "some": 0.1, "critical": 0.0}


class IdleModels(Protocol):
    """The idle models, which can be unloaded."""

    def idle(self) -> list[ModelEntry]:
        """Return the models that may be unloaded, the least recently used one first."""
        ...

    def used_at(self, entry: ModelEntry) -> float:
        """Return when work of a model came or ended last."""
        ...

    def unload(self, entry: ModelEntry) -> object:
        """Unload a model once its work is done."""
        ...


class KeepAlive:
    """Unloads models that were idle for `keep_alive_s`, sooner under memory pressure; `clock` in seconds.

    `pressure` is that on the host and on the devices of a model.
    """

    def __init__(
        self, models: IdleModels, pressure: Callable[[ModelEntry], Pressure], *, clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._pressure = pressure
        self._clock = clock
        self._timer = Timer(self.look)
        self._armed_for = math.inf  # in seconds of `clock`

    def __repr__(self) -> str:
        return f"<KeepAlive next_in_s={self._armed_for - self._clock():g}>"

    def changed(self) -> None:
        """Arm the timer anew after models became idle or the pressure changed."""
        idle = self._models.idle()
        if not idle:
            return
        entry = min(idle, key=self._ends_at)
        next_at = self._ends_at(entry)
        if next_at < self._armed_for:
            self._armed_for = next_at
            delay_s = max(0.0, next_at - self._clock())
            self._timer.arm(delay_s)
            log.debug("keep_alive.armed", model=entry.name, after_s=delay_s, pressure=self._pressure(entry))

    def look(self) -> None:
        """Unload the models whose keep-alive time is over, and arm the timer for the next one."""
        self.stop()
        for entry in self._models.idle():
            if self._ends_at(entry) <= self._clock():
                idle_s = round(self._clock() - self._models.used_at(entry), 1)
                kept_s = entry.configured.keep_alive_s
                log.info(
                    "model.idle", model=entry.name, idle_s=idle_s, keep_alive_s=kept_s, pressure=self._pressure(entry)
                )
                self._models.unload(entry)
        self.changed()

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
        self._armed_for = math.inf

    def _ends_at(self, entry: ModelEntry) -> float:
        return self._models.used_at(entry) + entry.configured.keep_alive_s * _PART[self._pressure(entry)]
