"""Events of models, passed on to every part that depends on them."""

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from car_base.host.timers import Idleness
from car_daemon.connections.server import Server
from car_daemon.lifecycle.drain import Drain
from car_daemon.lifecycle.readiness import ServiceReport
from car_daemon.methods.model_report import CapacityReport
from car_daemon.methods.models import ModelMethods
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.eviction import KeepAlive
from car_daemon.models.manager import ModelManager
from car_daemon.requests.inference import Inference


class Dependents(NamedTuple):
    """The parts that depend on models."""

    pool: ModelPool
    manager: ModelManager
    inference: Inference
    model_methods: ModelMethods
    keep_alive: KeepAlive
    service: ServiceReport
    idleness: Idleness
    server: Server
    capacity: CapacityReport
    drain: Drain


class ModelEvents:
    """Notifies the parts that `assemble` returns, once models exist; `fail` ends a daemon without its default one."""

    def __init__(self, assemble: Callable[[], Dependents], fail: Callable[[], None]) -> None:
        self._assemble = assemble
        self._fail = fail

    @cached_property
    def _dependents(self) -> Dependents:
        return self._assemble()

    def changed(self, entry: ModelEntry) -> None:
        """A model's state or capacity changed."""
        parts = self._dependents
        if failure_of(parts.pool) is not None:
            self._fail()
        parts.manager.changed(entry)
        parts.model_methods.changed(entry)
        parts.keep_alive.changed()
        parts.service.changed()
        parts.idleness.changed()
        # Clients are notified later because the gate gets an engine after its entry does.
        asyncio.get_running_loop().call_soon(self._notify_capacity, entry, entry.generation)

    def advanced(self, entry: ModelEntry) -> None:
        """A model's load made progress."""
        self._dependents.model_methods.advanced(entry)

    def work_arrived(self, entry: ModelEntry) -> None:
        """A request for a model arrived: it is loaded unless it is."""
        manager = self._dependents.manager
        manager.eviction.used(entry)
        manager.load(entry)

    def work_left(self, model: str) -> None:
        """A request for a model was answered."""
        parts = self._dependents
        entry = parts.pool.accepted(model)
        left_out = not parts.pool.is_configured(entry)
        parts.manager.eviction.used(entry)
        if left_out:
            parts.manager.unload(entry)
        parts.keep_alive.changed()
        parts.drain.changed()

    def pressure_changed(self) -> None:
        """The level of memory pressure changed, and with it every capacity."""
        parts = self._dependents
        parts.inference.events.memory_short()
        parts.pool.capacity_changed()
        parts.inference.allocate()
        parts.keep_alive.changed()

    def _notify_capacity(self, entry: ModelEntry, generation: int) -> None:
        """Notify subscribers of a change, unless a later change, which notifies them itself, has come."""
        if entry.generation == generation:
            parts = self._dependents
            parts.server.capacity_changed(parts.capacity.of(entry), default=entry.default)


def failure_of(pool: ModelPool) -> str | None:
    """Return the reason why the first default model could not be loaded; None if it could."""
    default = pool.first_default
    return default.reason if default.state == "failed" and default.loaded_at is None else None
