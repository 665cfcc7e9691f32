"""The daemon put together: who owns what, how it starts and how it ends."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count

import structlog

from car_daemon import faults
from car_daemon.activation import ActivatedSocket
from car_daemon.administration import Administration
from car_daemon.config import Config
from car_daemon.config_tables import ConfigError
from car_daemon.cores import read_cores
from car_daemon.descriptors import within_descriptors
from car_daemon.dispatch import Dispatch
from car_daemon.drain import Drain
from car_daemon.handlers import Handlers
from car_daemon.heap import return_large_blocks
from car_daemon.idleness import Idleness
from car_daemon.inference import Inference
from car_daemon.inspections import Inspections
from car_daemon.lag import LoopLag
from car_daemon.listen import OwnSocket
from car_daemon.memory import MemorySource, read_memory
from car_daemon.metrics import Metrics
from car_daemon.metrics_server import MetricsServer
from car_daemon.metrics_socket import MetricsSocket
from car_daemon.models.cores_watch import CoresWatch
from car_daemon.models.crew import Crew
from car_daemon.models.entry import ModelEntry
from car_daemon.models.footprint import read_footprint
from car_daemon.models.keep_alive import KeepAlive
from car_daemon.models.keeper import ModelKeeper
from car_daemon.models.link import launch
from car_daemon.models.pool import ModelPool
from car_daemon.models.room import Room
from car_daemon.models.supervisor import EngineSupervisor, Launcher, Patience
from car_daemon.notify import Notifier
from car_daemon.peer import ANYBODY
from car_daemon.pending import Reply
from car_daemon.pressure_watch import PressureWatch
from car_daemon.recent import Recent
from car_daemon.reload import Reload, needs_restart
from car_daemon.reports import Reports
from car_daemon.residence import Residence
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.server import Server
from car_daemon.service_report import Health, ServiceReport
from car_daemon.socket_group import SocketGroup
from car_daemon.socket_watch import SocketWatch
from car_protocol import __version__

log = structlog.get_logger()
# A drain ends this long before its limit, so that the rest can still be answered.
_LAST_WORDS_S = 5.0
_CLOSE_PATIENCE_S = 1.0


class Daemon:
    """Serves on a bound socket until it is told to stop or its default model fails."""

    def __init__(
        self,
        config: Config,
        own_socket: OwnSocket | ActivatedSocket,
        launcher: Launcher = launch,
        memory: MemorySource = read_memory,
        patience: Patience | None = None,
        notifier: Notifier | None = None,
        read_config: Callable[[], Config] | None = None,
        metrics_socket: MetricsSocket | None = None,
    ) -> None:
        clock = time.monotonic
        self._read_config = read_config or (lambda: config)
        self._socket = own_socket
        self._pool = ModelPool(
            config.models,
            config.default_model,
            on_change=self._model_changed,
            on_progress=lambda entry: self._residence.advanced(entry),
        )
        self._scheduler = Scheduler(Gate(config.machine_limit), config.queue, age_after=config.age_after_s)
        self._inference = Inference(
            self._scheduler, self._pool, clock=clock, arrived=self._work_arrived, left=self._work_left
        )
        limits = within_descriptors(config.limits)
        self._lag = LoopLag()
        self._reports = Reports(
            self._scheduler,
            self._pool,
            self._inference,
            limits,
            clients=lambda: self._server,
            loop_lag_ms=lambda: self._lag.milliseconds,
            socket=os.fsencode(own_socket.path).decode(errors="backslashreplace"),
            read_memory=memory,
            clock=clock,
        )
        metrics = Metrics(lambda: self._reports.status(ANYBODY), self._inference.latencies)
        self._metrics_socket = metrics_socket
        self._metrics = MetricsServer(Recent(metrics.page, clock))
        handlers = Handlers(self._inference, self._pool, self._reports, metrics)
        administration = Administration(
            drain=self._begin_drain,
            reload=self.reload,
            admins=lambda: {0, os.getuid(), *self._config.admin_uids},
            connections=lambda: self._server,
        )
        self._residence = Residence(
            self._pool,
            lambda: self._keeper,
            describe=self._reports.model,
            permit=administration.permit,
            draining=lambda: self._scheduler.draining,
        )
        self._inspections = Inspections(
            self._pool, describe=self._reports.model, free_for=lambda entry: self._keeper.room.free_for(entry)
        )
        table = handlers.table() | administration.table() | self._residence.table() | self._inspections.table()
        dispatch = Dispatch(table, self._scheduler.totals.refuse)
        self._server = Server(
            limits,
            config.allow_uids,
            dispatch,
            members=SocketGroup(own_socket.path) if isinstance(own_socket, ActivatedSocket) else (),
            on_change=lambda: self._idleness.changed(),
        )
        # A path that belongs to a service manager is nothing to look after, nor is a port.
        self._socket_watches = [
            SocketWatch(each, listen)
            for each, listen in ((own_socket, self._server.listen), (metrics_socket, self._metrics.listen))
            if isinstance(each, OwnSocket)
        ]
        self._idleness = Idleness(config.exit_idle_s, self._in_use, self._end_idle)
        health = Health(self._pool.default, lambda: self._lag.milliseconds, clock)
        self._service = ServiceReport(notifier or Notifier(), self._pool.default, health.fault)
        self._pressure = PressureWatch(
            self._scheduler.gate, config.pressure, memory, self._pressure_changed, clock=clock
        )
        self._cores = CoresWatch(
            read_cores, lambda: [os.getpid(), *self._pool.engine_pids], self._inference.cores_taken, clock=clock
        )
        engines = count(1)
        self._keeper = ModelKeeper(
            lambda entry: Crew(
                entry,
                lambda entry, replica: EngineSupervisor(
                    entry, replica, launcher, self._inference, numbers=engines, clock=clock, patience=patience
                ),
            ),
            self._inference,
            Room(config.budget_bytes, memory),
            measure=read_footprint,
            clock=clock,
            wanted=self._residence.wanted,
        )
        self._keep_alive = KeepAlive(self._keeper, lambda: self._scheduler.gate.pressure, clock=clock)
        self._reload = Reload(
            self._scheduler,
            self._pool,
            self._inference,
            self._reports,
            self._server,
            self._pressure,
            self._keeper.room,
            own_socket,
        )
        self._drain = Drain(self._inference, self._scheduler.totals)
        # Mutable state: the configuration in force, and whether the daemon was told to stop.
        self._config = config
        self._told_to_stop = False

    async def run(self) -> None:
        """Serve until told to stop; `failure` says afterwards whether the default model could be loaded."""
        asyncio.get_running_loop().set_exception_handler(faults.loop_failed)
        self._server.start(self._socket.listener)
        for watch in self._socket_watches:
            watch.start()
        self._lag.start()
        self._service.start()
        self._watch_signals()
        log.info("daemon.started", version=__version__, socket=str(self._socket.path), model=self._pool.default.name)
        self._keeper.load(self._pool.default)
        self._pressure.start()
        self._cores.start()
        # What it imports takes a while to load: not while the first client waits.
        await asyncio.to_thread(return_large_blocks)
        await self._serve_metrics()
        await self._drain.begun.wait()
        self._idleness.stop()
        self._service.draining(self._drain.patience_s + _LAST_WORDS_S + _CLOSE_PATIENCE_S)
        await self._drain.finish()
        if isinstance(self._socket, ActivatedSocket):
            # Who comes from now on waits for the next daemon.
            self._server.stop_listening()
        self._residence.refuse_all("draining")
        self._inspections.refuse_all("draining")
        self._keep_alive.stop()
        await self._keeper.stop()
        for watch in self._socket_watches:
            watch.stop()
        await self._metrics.close()
        await self._server.close(_CLOSE_PATIENCE_S)
        self._cores.stop()
        self._pressure.stop()
        self._lag.stop()
        self._service.stop()
        log.info("daemon.stopped")

    @property
    def failure(self) -> str | None:
        """Why the default model could not be loaded; None where it could."""
        default = self._pool.default
        return default.reason if default.state == "failed" and default.loaded_at is None else None

    def stop(self) -> None:
        """Begin to stop; a second call shortens the drain."""
        if self._told_to_stop:
            self._drain.hurry()
        self._told_to_stop = True
        self._begin_drain()

    def reload(self) -> None:
        """Read the configuration again; raises ConfigError and changes nothing where it cannot be used."""
        with self._service.reloading():
            config = self._read_config()
            old, self._config = self._config, config
            self._reload.apply(config)
        log.info("config.reloaded", needs_restart=needs_restart(old, config))

    async def _serve_metrics(self) -> None:
        if self._metrics_socket is not None:
            # What the first reader needs takes a while to load: not while somebody waits for tokens.
            await asyncio.to_thread(import_module, "prometheus_client")
            self._metrics.listen(self._metrics_socket.listener)
            log.info("metrics.served", address=str(self._config.metrics))

    def _begin_drain(self, patience_s: float | None = None, reply: Reply | None = None) -> None:
        configured = max(0.0, self._config.drain_timeout_s - _LAST_WORDS_S)
        self._drain.begin(configured if patience_s is None else patience_s, reply)

    def _hang_up(self) -> None:
        try:
            self.reload()
        except ConfigError as error:
            log.error("config.invalid", key=error.key)  # noqa: TRY400 - what is wrong with it is no failure of ours

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _in_use(self) -> bool:
        return len(self._server) > 0 or self._pool.default.state == "loading"

    def _end_idle(self) -> None:
        log.info("daemon.idle", seconds=self._config.exit_idle_s)
        # Who comes from now on waits for the next daemon.
        self._server.stop_listening()
        self.stop()

    def _pressure_changed(self) -> None:
        self._pool.capacity_changed()
        self._inference.dispatch()
        self._keep_alive.changed()

    def _work_arrived(self, entry: ModelEntry) -> None:
        self._keeper.used(entry)
        self._keeper.load(entry)

    def _work_left(self, model: str) -> None:
        self._keeper.used(self._pool.named(model))
        self._keep_alive.changed()

    def _model_changed(self, entry: ModelEntry) -> None:
        if self.failure is not None:
            self.stop()
        self._keeper.changed(entry)
        self._residence.changed(entry)
        self._keep_alive.changed()
        self._service.changed()
        self._idleness.changed()
        # The gate hears of an engine after its entry: tell clients once both know.
        asyncio.get_running_loop().call_soon(self._tell_capacity, entry, entry.generation)

    def _tell_capacity(self, entry: ModelEntry, generation: int) -> None:
        """Tell subscribers of a change, unless another one followed at once: they hear of that."""
        if entry.generation == generation:
            self._server.capacity_changed(self._reports.capacity(entry))
