"""Another configuration while the daemon runs: each part gets its settings, fixed keys are reported."""

from collections.abc import Callable

from msgspec import structs

from car_daemon.config.settings import Config
from car_daemon.connections.server import Server
from car_daemon.lifecycle.pressure_watch import PressureWatch
from car_daemon.methods.model_report import CapacityReport
from car_daemon.models.entry import ModelPool
from car_daemon.models.manager import ModelManager
from car_daemon.people.people import People
from car_daemon.requests.inference import Inference, sink_at
from car_daemon.sockets.activation import ActivatedSocket
from car_daemon.sockets.own_socket import OwnSocket
from car_daemon.telemetry import logs

# Settings that only a new daemon can change, by key.
_FIXED: dict[str, Callable[[Config], object]] = {
    "daemon.socket": lambda config: config.socket,
    "daemon.max_connections": lambda config: config.limits.max_connections,
    "daemon.max_connections_per_uid": lambda config: config.limits.max_connections_per_uid,
    "daemon.sandbox": lambda config: config.sandbox,
    "metrics.listen": lambda config: config.metrics,
}


def needs_restart(old: Config, new: Config) -> list[str]:
    """Return the changed keys that take effect with the next daemon only."""
    fixed = [key for key, value in _FIXED.items() if value(old) != value(new)]
    return fixed if old.cluster in (None, new.cluster) else [*fixed, "cluster"]


class Reload:
    """Hands each owner its part of a configuration."""

    def __init__(
        self,
        people: People,
        pool: ModelPool,
        inference: Inference,
        capacity: CapacityReport,
        server: Server,
        pressure: PressureWatch,
        manager: ModelManager,
        listening: OwnSocket | ActivatedSocket,
    ) -> None:
        self._scheduler = inference.scheduler
        self._people = people
        self._pool = pool
        self._inference = inference
        self._capacity = capacity
        self._server = server
        self._pressure = pressure
        self._manager = manager
        self._socket = listening

    def apply(self, config: Config) -> None:
        """Apply every setting that can change now; models get theirs at their next load."""
        logs.configure(config.log_level, config.log_format)
        self._scheduler.decisions.sink = sink_at(config.log_level)
        self._server.admission.allow(config.allow_uids)
        if isinstance(self._socket, OwnSocket):
            self._socket.set_shared(shared=bool(config.allow_uids))
        self._pool.configure(config.models)
        self._pool.use(config.default_model)
        self._manager.load(self._pool.default)
        for entry in self._pool:
            if self._pool.is_configured(entry):
                self._manager.grow(entry)
            else:
                self._manager.unload(entry)
        self._manager.budget.budget_bytes = config.budget_bytes
        self._pressure.limit(config.pressure)
        reported = self._capacity.limits, self._scheduler.gate.machine_limit
        bounds = config.queue
        self._scheduler.backlog.bounds = bounds
        self._scheduler.waiting.age_after = config.age_after_s
        self._people.configure(config.delegates, config.people)
        self._scheduler.set_weights({**config.weights, **self._people.weights()})
        self._capacity.limits = structs.replace(
            self._capacity.limits, queue_limit=bounds.limit, queue_max_bytes=bounds.max_bytes
        )
        self._scheduler.gate.machine_limit = config.machine_limit
        if reported != (self._capacity.limits, config.machine_limit):
            self._pool.capacity_changed()
        self._inference.allocate()
