"""The daemon's parts and their connections: each is made when the first other part needs it."""

import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from car_base.host.cores import read_cores, usable_cpus
from car_base.host.devices import may_have_gpus
from car_base.host.event_log import log
from car_base.host.memory import MemorySource, highest, read_memory, within_descriptors
from car_base.host.timers import Idleness, LoopLag, TtlCache
from car_daemon.config.settings import Config
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.connections.server import Server
from car_daemon.engines.auto_device import AutoDevice
from car_daemon.engines.link import Launcher, launch
from car_daemon.engines.registry import CoresWatch
from car_daemon.engines.supervisor import EngineSupervisor, LoadOrder, ReplicaSet, SupervisionLimits
from car_daemon.ledger.ledger import Ledger
from car_daemon.lifecycle.drain import Drain
from car_daemon.lifecycle.model_events import Dependents, ModelEvents
from car_daemon.lifecycle.pressure_watch import DevicePressure, PressureWatch
from car_daemon.lifecycle.readiness import Notifier, Readiness, ServiceReport
from car_daemon.lifecycle.reload import Reload
from car_daemon.lifecycle.upkeep import CurveRenewal, OldCells, WeightsWatch
from car_daemon.methods.admin import Administration
from car_daemon.methods.dispatch import Dispatch
from car_daemon.methods.inference import InferenceMethods
from car_daemon.methods.model_report import CapacityReport, ModelReport
from car_daemon.methods.models import Inspections, ModelMethods
from car_daemon.methods.status import StatusMethods
from car_daemon.methods.status_report import StatusReport, UserView
from car_daemon.methods.usage import UsageMethods
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.eviction import KeepAlive
from car_daemon.models.manager import ModelManager
from car_daemon.models.memory_budget import MemoryBudget
from car_daemon.models.memory_estimate import estimate_memory
from car_daemon.models.model_files import ModelFiles
from car_daemon.models.replica import Replica
from car_daemon.people.identity import Identity
from car_daemon.people.people import People
from car_daemon.requests.answer import Responder
from car_daemon.requests.inference import Inference, sink_at
from car_daemon.requests.meter import Meter
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Decisions
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.sockets.activation import ActivatedSocket
from car_daemon.sockets.loopback import LoopbackPort, MetricsSocket
from car_daemon.sockets.own_socket import OwnSocket, SocketWatch
from car_daemon.sockets.peer import Peer, SocketGroup, peer_of
from car_daemon.telemetry.metrics import Metrics
from car_daemon.telemetry.metrics_server import MetricsServer
from car_protocol import __version__
from car_protocol.status import ClusterStatus

if TYPE_CHECKING:
    from car_daemon.cluster.placer import Placer


class Sockets(NamedTuple):
    """The listening sockets: for clients, and for readers of metrics if they are served."""

    clients: OwnSocket | ActivatedSocket
    metrics: MetricsSocket | None = None


class Seams(NamedTuple):
    """Everything outside the process that a test replaces."""

    launcher: Launcher = launch
    memory: MemorySource = read_memory
    may_have_gpus: Callable[[], bool] = may_have_gpus
    placer: Sequence[str] | None = None  # a command in place of the one for Ray
    limits: SupervisionLimits | None = None
    notifier: Notifier = Notifier()
    read_peer: Callable[[socket.socket], Peer] = peer_of
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


class Control(NamedTuple):
    """The daemon's configuration in force, and its own verbs, which methods and idleness call."""

    config: Callable[[], Config]
    stop: Callable[[], None]
    reload: Callable[[], Awaitable[None]]
    begin_drain: Callable[[float | None, Responder | None], None]


class Assembly:
    """The parts of one daemon."""

    def __init__(self, config: Config, sockets: Sockets, seams: Seams, control: Control) -> None:
        self._config = config
        self._sockets = sockets
        self._seams = seams
        self._control = control
        self._clock = seams.clock
        self._limits = within_descriptors(config.limits)
        self._load_order = LoadOrder()
        self._files = ModelFiles()

    # Requests.

    @cached_property
    def people(self) -> People:
        """The people of the configuration."""
        sums = self.ledger.sums
        return People(
            self._config.delegates,
            self._config.people,
            spent=sums.spent,
            day_ends=self.ledger.day_ends,
            clock=self._seams.wall_clock,
        )

    @cached_property
    def ledger(self) -> Ledger:
        """Keeps the usage of people."""
        return Ledger(self._config.usage_folder, self._seams.wall_clock)

    @cached_property
    def meter(self) -> Meter:
        """Counts the usage of people."""
        return Meter(self.ledger.sums)

    def keep_usage(self, config: Config) -> None:
        """Keep the ledger once there are people; in the running event loop."""
        self.ledger.keep(config.usage_days, by_person=config.usage_by_person, kept=bool(config.people))
        self.meter.on = self.ledger.kept

    @cached_property
    def scheduler(self) -> Scheduler:
        """Decides which request runs."""
        config = self._config
        decisions = Decisions(sink_at(config.log_level))
        gate = Gate(config.machine_limit, decisions)
        weights = {**config.weights, **self.people.weights()}
        return Scheduler(gate, config.queue, age_after=config.age_after_s, weights=weights, decisions=decisions)

    @cached_property
    def inference(self) -> Inference:
        """Requests from accepted to answered."""
        events = self.model_events
        return Inference(
            self.scheduler,
            self.pool,
            clock=self._clock,
            arrived=events.work_arrived,
            left=events.work_left,
            meter=self.meter,
            check_day=self.people.check_day,
        )

    @cached_property
    def drain(self) -> Drain:
        """The end of all requests."""
        return Drain(self.inference, self.scheduler)

    # Models and engines.

    @cached_property
    def model_events(self) -> ModelEvents:
        """Passes changes of models on."""
        return ModelEvents(lambda: self._dependents, self._control.stop)

    @cached_property
    def pool(self) -> ModelPool:
        """All models by name."""
        config, events = self._config, self.model_events
        return ModelPool(config.models, config.default_model, on_change=events.changed, on_progress=events.advanced)

    @cached_property
    def manager(self) -> ModelManager:
        """Decides which models are in memory."""
        return ModelManager(
            lambda entry: ReplicaSet(entry, self._supervisor),
            self.inference.work,
            MemoryBudget(self._config.budget_bytes, self._seams.memory, self.auto_device.find),
            measure=lambda settings: estimate_memory(self._files.check(settings), settings),
            settle=self.auto_device.settle,
            clock=self._clock,
            awaited=self.model_methods.is_awaited,
        )

    @cached_property
    def auto_device(self) -> AutoDevice:
        """Decides the device of models without a stated one."""
        return AutoDevice(self._seams.launcher, self.pool.place, self._seams.may_have_gpus)

    @cached_property
    def keep_alive(self) -> KeepAlive:
        """Unloads models that are idle."""
        pressure = lambda entry: highest((self.scheduler.gate.pressure, entry.device_pressure))  # noqa: E731 - read at each change
        return KeepAlive(self.manager.eviction, pressure, clock=self._clock)

    @cached_property
    def pressure(self) -> PressureWatch:
        """Watches memory."""
        gate, changed = self.scheduler.gate, self.model_events.pressure_changed
        return PressureWatch(
            gate,
            self._config.pressure,
            self._seams.memory,
            changed,
            devices=DevicePressure(self.pool, self._config.pressure, self._clock),
            clock=self._clock,
        )

    @cached_property
    def weights(self) -> WeightsWatch:
        """Watches the files of loaded models."""
        return WeightsWatch(self.pool, self.manager)

    @cached_property
    def curves(self) -> CurveRenewal:
        """Measures costs again that were measured on busy cores."""
        leaves = lambda threads: self.cores.foreign + threads <= len(usable_cpus())  # noqa: E731 - read at each look
        busy = self.inference.work.busy
        return CurveRenewal(self.pool, self.manager.reload, busy=busy, leaves=leaves, clock=self._clock)

    @cached_property
    def old_cells(self) -> OldCells:
        """Removes stored cells that were not used for long."""
        return OldCells(lambda: self.pool.default.configured.cache_dir, time.time)

    @cached_property
    def cores(self) -> CoresWatch:
        """Watches the cores that other programs use."""
        changed = self.inference.events.cores_taken
        return CoresWatch(read_cores, lambda: [os.getpid(), *self.pool.engine_pids], changed, clock=self._clock)

    def _supervisor(self, entry: ModelEntry, replica: Replica) -> EngineSupervisor:
        return EngineSupervisor(
            entry,
            replica,
            self._cluster_launcher(entry, replica) if replica.placed else self._seams.launcher,
            self.inference.events,
            order=self._load_order,
            clock=self._clock,
            limits=self._seams.limits,
            check=self._files.check,
        )

    def _cluster_launcher(self, entry: ModelEntry, replica: Replica) -> Launcher:
        # Imported here because most daemons place nothing.
        from car_daemon.cluster.remote import ClusterLauncher

        return ClusterLauncher(entry, replica, self._placer, self.pressure.of_host, clock=self._clock)

    @cached_property
    def _placer(self) -> "Placer":
        from car_base.ipc.placing import Join, schema_hash
        from car_daemon.cluster.placer import COMMAND, Placer

        # Not that of the start, because a reload may add the table.
        cluster = self._control.config().cluster
        assert cluster is not None
        # The process id keeps daemons of one machine apart.
        daemon = f"{socket.gethostname()}-{os.getuid()}-{os.getpid()}"
        join = Join(
            address=cluster.address,
            token=cluster.token,
            place_timeout_s=cluster.place_timeout_s,
            daemon=daemon,
            version=__version__,
            schema=schema_hash(),
        )
        return Placer(join, self._clock, self._seams.placer or COMMAND)

    def _cluster_status(self) -> ClusterStatus | None:
        cluster = self._control.config().cluster
        if cluster is None or "_placer" in self.__dict__:
            return None if cluster is None else self._placer.status()
        return ClusterStatus(address=cluster.address, placer_pid=None, ray=None)

    def connect_placer(self) -> None:
        """Connect to the cluster if a model has engines there."""
        if any(entry.configured.placed for entry in self.pool):
            self._placer.connect()

    async def end_placer(self) -> None:
        """End the placer process if one was needed."""
        if "_placer" in self.__dict__:
            await self._placer.stop()

    @cached_property
    def _dependents(self) -> Dependents:
        return Dependents(
            self.pool,
            self.manager,
            self.inference,
            self.model_methods,
            self.keep_alive,
            self.service,
            self.idleness,
            self.server,
            self.capacity,
            self.drain,
        )

    # Reports.

    @cached_property
    def lag(self) -> LoopLag:
        """Measures the event loop's delay."""
        return LoopLag()

    @cached_property
    def capacity(self) -> CapacityReport:
        """Capacity objects, and `inference/capacity`."""
        return CapacityReport(self.scheduler, self.pool, self._limits)

    @cached_property
    def _models(self) -> ModelReport:
        return ModelReport(self.pool, self.scheduler.gate, self._admins)

    @cached_property
    def status(self) -> StatusReport:
        """Status objects."""
        return StatusReport(
            self.inference,
            self._models,
            self.capacity,
            loop_lag_ms=lambda: self.lag.milliseconds,
            socket=os.fsencode(self._sockets.clients.path).decode(errors="backslashreplace"),
            read_memory=self._seams.memory,
            cluster=self._cluster_status,
            clock=self._clock,
        )

    @cached_property
    def user_view(self) -> UserView:
        """The status for one user."""
        return UserView(self.status, server=lambda: self.server, admins=self._admins, clock=self._clock)

    @cached_property
    def _metrics(self) -> Metrics:
        return Metrics(
            lambda: self.status.common(admin=False),
            connections=lambda: len(self.server),
            leased=lambda: self.scheduler.gate.in_use,
            latencies=self.inference.latencies,
            usage=self.ledger.sums.series,
        )

    @cached_property
    def metrics_server(self) -> MetricsServer:
        """Serves metrics over HTTP."""
        address = self._config.metrics
        return MetricsServer(
            TtlCache(self._metrics.page, self._clock),
            name=address.name if isinstance(address, LoopbackPort) else None,
            read_peer=self._seams.read_peer,
        )

    @cached_property
    def service(self) -> ServiceReport:
        """Notifies the service manager."""
        default = lambda: self.pool.default  # noqa: E731 - a reload may name another
        health = Readiness(default, lambda: self.lag.milliseconds, self._clock)
        return ServiceReport(self._seams.notifier, default, health.fault)

    # Methods and connections.

    def _admins(self) -> set[int]:
        return {0, os.getuid(), *self._control.config().admin_uids}

    @cached_property
    def _fair_queue(self) -> FairQueue:
        return FairQueue()

    @cached_property
    def _administration(self) -> Administration:
        return Administration(
            drain=self._control.begin_drain,
            reload=self._control.reload,
            admins=self._admins,
            connections=lambda: self.server,
        )

    @cached_property
    def model_methods(self) -> ModelMethods:
        """`models/load`, `models/unload`."""
        return ModelMethods(
            self.pool,
            lambda: self.manager,
            describe=self._models.of,
            permit=self._administration.permit,
            draining=lambda: self.scheduler.draining,
        )

    @cached_property
    def inspections(self) -> Inspections:
        """`models/list`, `models/show`."""
        free_for = lambda entry: self.manager.budget.free_for(entry)  # noqa: E731 - the manager is made later
        return Inspections(self.pool, describe=self._models.of, free_for=free_for, abilities=self._models.abilities)

    @cached_property
    def dispatch(self) -> Dispatch:
        """The table of methods."""
        inference = InferenceMethods(self.inference, self.pool)
        families = (
            inference,
            self.capacity,
            StatusMethods(self.user_view, self._metrics, self._fair_queue, self._admins),
            UsageMethods(self.ledger, self._admins),
            self._administration,
            self.model_methods,
            self.inspections,
        )
        handlers = {name: handler for family in families for name, handler in family.table().items()}
        return Dispatch(handlers, self.people, self._refused, inference.superseded)

    def _refused(self, identity: Identity) -> None:
        self.scheduler.totals.refuse()
        if self.meter.on:
            self.meter.refused(identity)

    @cached_property
    def server(self) -> Server:
        """All connections."""
        clients = self._sockets.clients
        return Server(
            self._limits,
            self._config.allow_uids,
            self.dispatch.call,
            self.dispatch.refused,
            self._fair_queue,
            members=SocketGroup(clients.path) if isinstance(clients, ActivatedSocket) else (),
            read_peer=self._seams.read_peer,
            on_change=lambda: self.idleness.changed(),
        )

    @cached_property
    def idleness(self) -> Idleness:
        """Ends a daemon without clients after the time given by `--exit-idle`."""
        in_use = lambda: len(self.server) > 0 or self.pool.default.state == "loading"  # noqa: E731 - read at each change
        return Idleness(self._config.exit_idle_s, in_use, self._end_idle)

    @cached_property
    def socket_watches(self) -> list[SocketWatch]:
        """Watches of the sockets' paths; sockets of a service manager and ports have none."""
        listeners = ((self._sockets.clients, self.server.listen), (self._sockets.metrics, self.metrics_server.listen))
        return [SocketWatch(each, listen) for each, listen in listeners if isinstance(each, OwnSocket)]

    @cached_property
    def reload(self) -> Reload:
        """Hands each part its settings of another configuration."""
        return Reload(
            self.people,
            self.pool,
            self.inference,
            self.capacity,
            self.server,
            self.pressure,
            self.manager,
            self._sockets.clients,
        )

    def _end_idle(self) -> None:
        log.info("daemon.idle", seconds=self._config.exit_idle_s)
        # Clients that connect from now on wait in the socket's backlog for the next daemon.
        self.server.stop_listening()
        self._control.stop()
