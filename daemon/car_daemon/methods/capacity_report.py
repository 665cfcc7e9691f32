"""The method `inference/capacity`: the figures of one model's engines and queue at this moment."""

from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.host.pressure import highest
from car_daemon.methods.dispatch import Handler
from car_daemon.models.entry import ModelEntry
from car_daemon.models.pool import ModelPool
from car_daemon.scheduler.request import State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol import PROTOCOL, __version__
from car_protocol.capacity import Capacity, CapacityParams, Machine
from car_protocol.limits import Limits


class CapacityReport:
    """Capacity objects from the gate, the queue and a model's entry, with the handler that returns them."""

    def __init__(self, scheduler: Scheduler, pool: ModelPool, limits: Limits) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self.limits = limits  # replaced by a reload

    def table(self) -> dict[str, Handler]:
        """Return the handler by method."""
        return {"inference/capacity": self.capacity}

    def capacity(self, connection: Connection, _call: RpcCall, params: CapacityParams) -> Capacity:
        """Return a model's capacity; start or end the connection's subscription to its changes."""
        entry = self._pool.default if params.model is None else self._pool.named(params.model)
        if params.subscribe:
            connection.subscriptions.watch_capacity(None if params.model is None else entry.name)
        elif params.subscribe is not None:
            connection.subscriptions.end_capacity(entry.name, default=entry.default)
        return self.of(entry)

    def of(self, entry: ModelEntry) -> Capacity:
        """Return the capacity object of a model."""
        gate, ready = self._scheduler.gate, entry.replicas.ready
        occupancy = gate.occupancy(entry.name)
        requests = self._scheduler.table.models.get(entry.name)
        return Capacity(
            capacity=occupancy.capacity,
            declared=occupancy.declared,
            in_use=occupancy.leased,
            available=occupancy.available,
            parked=0 if requests is None else requests.states[State.PARKED],
            queued=0 if requests is None else requests.queued,
            queue_limit=self.limits.queue_limit,
            policy=ready.policy if ready else None,
            pressure=gate.pressure
            if entry.device_pressure == "none"
            else highest((gate.pressure, entry.device_pressure)),
            state=entry.state,
            model=entry.name,
            context_tokens=ready.context_tokens if ready else None,
            machine=Machine(gate.machine_limit, occupancy.machine_leased),
            generation=entry.generation,
            protocol=PROTOCOL,
            version=__version__,
            limits=self.limits,
            reason=entry.reason,
            inputs=ready.inputs if ready else None,
        )
