"""The reports of one model: its capacity, its devices, and its object as a client may read it."""

from collections.abc import Callable, Iterable
from typing import Any

from car_base.host.memory import highest
from car_base.ipc.frames import DeviceUse
from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.methods.dispatch import Handler
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.inspection import Abilities
from car_daemon.models.replica import Replica
from car_daemon.people.identity import Identity
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol import PROTOCOL, __version__
from car_protocol.capacity import Capacity, CapacityParams, Machine
from car_protocol.limits import Limits
from car_protocol.models import DeviceStatus, Model


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


def devices_of(replica: Replica) -> list[DeviceStatus]:
    """Return the devices that hold a part of a replica; all that it may use, if none has room for any."""
    if replica.ready is None:
        return []
    uses = replica.ready.devices
    return [_device(use, replica) for use in [each for each in uses if each.slots] or uses]


def host_experts_of(replicas: Iterable[Replica]) -> int:
    """Return the most layers of a replica whose experts are on the host."""
    return max((each.ready.host_experts for each in replicas if each.ready is not None), default=0)


def _device(use: DeviceUse, replica: Replica) -> DeviceStatus:
    return DeviceStatus(
        name=use.name,
        layers=use.slots,
        planned_bytes=use.planned,
        taken_bytes=use.taken,
        free_bytes=next((each.free for each in replica.devices if each.name == use.name), use.free),
        total_bytes=use.total,
        pressure=replica.pressures.get(use.name, "none"),
    )


class ModelReport:
    """Model objects; the users `admins` get the path of a model's file, others the file's name."""

    def __init__(self, pool: ModelPool, gate: Gate, admins: Callable[[], set[int]]) -> None:
        self.pool = pool
        self._gate = gate
        self._admins = admins
        self.abilities = Abilities()

    def of(self, entry: ModelEntry, caller: Identity) -> Model:
        """Return the model object of an entry for a client."""
        return Model(**self.facts(entry, admin=caller.number in self._admins()))

    def facts(self, entry: ModelEntry, *, admin: bool) -> dict[str, Any]:
        """Return the members of a model object."""
        ready, path = entry.replicas.ready, entry.settings.path
        return {
            "name": entry.name,
            "aliases": list(entry.configured.aliases),
            "defaults": entry.configured.defaults,
            "path": str(path) if admin else path.name,
            "state": entry.state,
            "default": entry.default,
            "pinned": entry.pinned,
            "size_bytes": entry.size_bytes,
            "capacity": self._gate.capacity(entry.name),
            "context_tokens": ready.context_tokens if ready else None,
            "adapters": sorted(entry.settings.adapters),
            "can": self.abilities.of(entry),
            "device": entry.replicas.device,
            "replicas": len(entry.replicas),
            "place": entry.settings.place,
            "up": len(entry.replicas.serving),
            "waiting_for": next((each.waiting_for for each in entry.replicas if each.waiting_for), None),
            "loaded_at": entry.loaded_at,
            "last_used_at": entry.last_used_at,
            "reason": entry.reason,
        }
