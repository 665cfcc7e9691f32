"""When a model that nobody uses is unloaded."""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

import structlog

from car_daemon.models.entry import ModelEntry
from car_protocol.capacity import Pressure

log = structlog.get_logger()
# What is left of the time to keep a model while memory is short.
_LEFT: dict[Pressure, float] = {"none": 1.0, "some": 0.1, "critical": 0.0}


class Keeper(Protocol):
    """What knows the idle models."""

    def idle(self) -> list[ModelEntry]:
        """Return the models that may go, the least recently used one first."""
        ...

    def used_at(self, entry: ModelEntry) -> float:
        """Return when work of a model came or ended last."""
        ...

    def unload(self, entry: ModelEntry) -> object:
        """Have a model go."""
        ...


class KeepAlive:
    """Unloads models idle for `keep_alive_s`, sooner under pressure; `clock` in seconds."""

    def __init__(self, keeper: Keeper, pressure: Callable[[], Pressure], *, clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._pressure = pressure
        self._clock = clock
        # Mutable state: the timer of the next look, and when that is.
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf

    def changed(self) -> None:
        """Take note that models became idle, or memory short."""
        next_at = min((self._ends_at(entry) for entry in self._keeper.idle()), default=math.inf)
        if next_at < self._armed_for:
            self.stop()
            self._armed_for = next_at
            delay = max(0.0, next_at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.look)

    def look(self) -> None:
        """Unload what was idle for its time, and look again when the next one is."""
        self.stop()
        for entry in self._keeper.idle():
            if self._ends_at(entry) <= self._clock():
                log.info("model.idle", model=entry.name)
                self._keeper.unload(entry)
        self.changed()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed_for = None, math.inf

    def _ends_at(self, entry: ModelEntry) -> float:
        return self._keeper.used_at(entry) + entry.configured.keep_alive_s * _LEFT[self._pressure()]
