"""What of another configuration takes effect while the daemon runs."""

from collections.abc import Callable

from msgspec import structs

from car_daemon import logs
from car_daemon.activation import ActivatedSocket
from car_daemon.config import Config
from car_daemon.inference import Inference
from car_daemon.listen import OwnSocket
from car_daemon.models.pool import ModelPool
from car_daemon.models.room import Room
from car_daemon.pressure_watch import PressureWatch
from car_daemon.reports import Reports
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.server import Server

# What only a new daemon can have otherwise, by its key.
_FIXED: dict[str, Callable[[Config], object]] = {
    "default_model": lambda config: config.default_model,
    "daemon.socket": lambda config: config.socket,
    "daemon.max_connections": lambda config: config.limits.max_connections,
    "daemon.max_connections_per_uid": lambda config: config.limits.max_connections_per_uid,
    "metrics.listen": lambda config: config.metrics,
}


def needs_restart(old: Config, new: Config) -> list[str]:
    """Return the keys whose change has to wait for the next daemon."""
    fixed = [key for key, value in _FIXED.items() if value(old) != value(new)]
    return [*fixed, *(f"models.{name}" for name in sorted(old.models.keys() - new.models.keys()))]


class Reload:
    """Hands each owner its part of a configuration."""

    def __init__(
        self,
        scheduler: Scheduler,
        pool: ModelPool,
        inference: Inference,
        reports: Reports,
        server: Server,
        pressure: PressureWatch,
        room: Room,
        listening: OwnSocket | ActivatedSocket,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._inference = inference
        self._reports = reports
        self._server = server
        self._pressure = pressure
        self._room = room
        self._socket = listening

    def apply(self, config: Config) -> None:
        """Change what can be changed now; models get their settings when they are loaded next."""
        logs.configure(config.log_level, config.log_format)
        self._server.allow(config.allow_uids)
        if isinstance(self._socket, OwnSocket):
            self._socket.share(shared=bool(config.allow_uids))
        self._pool.configure(config.models)
        self._room.budget_bytes = config.budget_bytes
        self._pressure.limit(config.pressure)
        told = self._reports.limits, self._scheduler.gate.machine_limit
        self._bound_queue(config)
        self._scheduler.gate.machine_limit = config.machine_limit
        if told != (self._reports.limits, config.machine_limit):
            self._pool.capacity_changed()
        self._inference.dispatch()

    def _bound_queue(self, config: Config) -> None:
        bounds = config.queue
        self._scheduler.backlog.bounds = bounds
        self._scheduler.waiting.age_after = config.age_after_s
        self._reports.limits = structs.replace(
            self._reports.limits, queue_limit=bounds.limit, queue_max_bytes=bounds.max_bytes
        )
