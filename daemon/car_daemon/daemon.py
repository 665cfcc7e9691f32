"""The daemon put together: who owns what, how it starts and how it ends."""

import asyncio
import signal
import time

import structlog

from car_daemon.config import Config
from car_daemon.dispatch import Dispatch
from car_daemon.handlers import Handlers
from car_daemon.inference import Inference
from car_daemon.lag import LoopLag
from car_daemon.listen import OwnSocket
from car_daemon.memory import MemorySource, read_memory
from car_daemon.models.entry import ModelEntry
from car_daemon.models.link import launch
from car_daemon.models.pool import ModelPool
from car_daemon.models.supervisor import EngineSupervisor, Launcher
from car_daemon.pressure_watch import PressureWatch
from car_daemon.reports import Reports
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.server import Server
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
        own_socket: OwnSocket,
        launcher: Launcher = launch,
        memory: MemorySource = read_memory,
    ) -> None:
        clock = time.monotonic
        self._config = config
        self._socket = own_socket
        self._pool = ModelPool(config.models, config.default_model, on_change=self._model_changed)
        self._scheduler = Scheduler(Gate(config.machine_limit), config.queue, age_after=config.age_after_s)
        self._inference = Inference(self._scheduler, self._pool, clock=clock)
        self._server = Server(config.limits, config.allow_uids)
        self._lag = LoopLag()
        self._reports = Reports(
            self._scheduler,
            self._pool,
            self._inference,
            config.limits,
            clients=lambda: self._server,
            loop_lag_ms=lambda: self._lag.milliseconds,
            socket=str(own_socket.path),
            read_memory=memory,
            clock=clock,
        )
        self._pressure = PressureWatch(
            self._scheduler.gate, config.pressure, memory, self._pressure_changed, clock=clock
        )
        self._supervisor = EngineSupervisor(self._pool.default, launcher, self._inference, clock=clock)
        # Mutable state: set by signals and by the failure of the default model.
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> bool:
        """Serve; return False where the default model could not be loaded."""
        handlers = Handlers(self._inference, self._pool, self._reports)
        await self._server.start(self._socket.listener, Dispatch(handlers.table(), self._scheduler.totals.refuse))
        self._lag.start()
        self._watch_signals()
        log.info("daemon.started", version=__version__, socket=str(self._socket.path), model=self._pool.default.name)
        self._supervisor.start()
        self._pressure.start()
        await self._stop.wait()
        await self._drain()
        await self._supervisor.stop()
        await self._server.close(_CLOSE_PATIENCE_S)
        self._pressure.stop()
        self._lag.stop()
        log.info("daemon.stopped")
        return self._pool.default.state != "failed"

    def stop(self) -> None:
        """Begin to stop; a second call shortens the drain."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _drain(self) -> None:
        """Refuse what comes, finish what runs and waits, answer the rest before the limit."""
        self._inference.drain()
        patience = max(0.0, self._config.drain_timeout_s - _LAST_WORDS_S)
        waits = [asyncio.create_task(self._inference.idle.wait()), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self._inference.refuse_all("draining")

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def _pressure_changed(self) -> None:
        for entry in self._pool:
            entry.capacity_changed()
        self._inference.dispatch()

    def _model_changed(self, entry: ModelEntry) -> None:
        if entry.default and entry.state == "failed":
            self.stop()
        # The gate hears of an engine after its entry: tell clients once both know.
        asyncio.get_running_loop().call_soon(lambda: self._server.capacity_changed(self._reports.capacity(entry)))
