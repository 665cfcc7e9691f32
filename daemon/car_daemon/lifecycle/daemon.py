"""The daemon over its life: it starts its parts, serves, drains and stops."""

import asyncio
import gc
import signal
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Protocol

from car_base.host import defects
from car_base.host.event_log import log
from car_base.host.signals import handle_in_loop
from car_daemon.config.settings import Config
from car_daemon.config.tables import ConfigError
from car_daemon.lifecycle.assembly import Assembly, Control, Seams, Sockets
from car_daemon.lifecycle.model_events import failure_of
from car_daemon.lifecycle.reload import needs_restart
from car_daemon.requests.answer import Responder
from car_daemon.sockets.activation import ActivatedSocket
from car_protocol import __version__
from car_protocol.allocator import return_blocks

# A drain ends this long before its limit, so that the remaining requests can still be answered.
_LAST_ANSWERS_S = 5.0
_CLOSE_PATIENCE_S = 1.0
_LARGE_BYTES = 1024 * 1024


class StartedPart(Protocol):
    """A part that works from start to stop."""

    def start(self) -> None:
        """Begin, in the running event loop."""
        ...

    def stop(self) -> None:
        """End."""
        ...


class Daemon:
    """Serves on bound sockets until it is stopped or its default model fails."""

    def __init__(
        self,
        config: Config,
        sockets: Sockets,
        seams: Seams | None = None,
        read_config: Callable[[], Config] | None = None,
    ) -> None:
        self.config = config  # the one in force
        self._sockets = sockets
        self._read_config = read_config or (lambda: config)
        control = Control(lambda: self.config, self.stop, self.reload, self.begin_drain)
        self._parts = Assembly(config, sockets, seams or Seams(), control)
        self._is_stopping = False
        self._reloading = asyncio.Lock()
        self._signalled: set[asyncio.Task[None]] = set()  # reloads that signals asked for

    async def run(self) -> None:
        """Serve until stopped; `failure` says afterwards whether the default model could be loaded."""
        asyncio.get_running_loop().set_exception_handler(defects.loop_failed)
        parts = self._parts
        async with AsyncExitStack() as stopping:
            self._start(stopping)
            # In a thread, because its imports take a while and the first client must not wait for them.
            await asyncio.to_thread(return_blocks, _LARGE_BYTES)
            # The objects of the start stay for good: a collection need not visit them.
            gc.freeze()
            if self._sockets.metrics is not None:
                # The first page needs a module that takes a while to load, too.
                await asyncio.to_thread(import_module, "prometheus_client")
                parts.metrics_server.listen(self._sockets.metrics.listener)
                log.info("metrics.served", address=str(self.config.metrics))
            await parts.drain.begun.wait()
            parts.idleness.stop()
            parts.service.draining(parts.drain.patience_s + _LAST_ANSWERS_S + _CLOSE_PATIENCE_S)
            await parts.drain.finish()
            if isinstance(self._sockets.clients, ActivatedSocket):
                # Clients that connect from now on wait in the socket's backlog for the next daemon.
                parts.server.stop_listening()
            parts.model_methods.refuse_all("draining")
            parts.inspections.refuse_all("draining")
        log.info("daemon.stopped")

    @property
    def failure(self) -> str | None:
        """The reason why the default model could not be loaded; None if it could."""
        return failure_of(self._parts.pool)

    def stop(self) -> None:
        """Begin to stop; a second call shortens the drain."""
        if self._is_stopping:
            self._parts.drain.hurry()
        self._is_stopping = True
        self.begin_drain()

    async def reload(self) -> None:
        """Read the configuration again; raises ConfigError and changes nothing if it cannot be used."""
        # One after the other, so that the file that was read last is in force.
        async with self._reloading:
            with self._parts.service.reloading():
                # In a thread, because the tables of 10,000 people take most of a second, and answers go on meanwhile.
                config = await asyncio.to_thread(self._read_config)
                old, self.config = self.config, config
                self._parts.auto_device.look()
                self._parts.reload.apply(config)
                self._parts.keep_usage(config)
                self._parts.connect_placer()
            log.info("config.reloaded", needs_restart=needs_restart(old, config))

    def begin_drain(self, patience_s: float | None = None, responder: Responder | None = None) -> None:
        """Admit nothing more; refuse in `patience_s` seconds the requests that are not done."""
        configured = max(0.0, self.config.drain_timeout_s - _LAST_ANSWERS_S)
        self._parts.drain.begin(configured if patience_s is None else patience_s, responder)

    def _start(self, stopping: AsyncExitStack) -> None:
        """Start the parts; `stopping` stops them in reverse order."""
        parts = self._parts
        parts.server.start(self._sockets.clients.listener)
        self._start_services([parts.service, parts.lag, *parts.socket_watches], stopping)
        parts.keep_usage(self.config)
        stopping.push_async_callback(parts.ledger.close)
        stopping.push_async_callback(parts.server.close, _CLOSE_PATIENCE_S)
        stopping.push_async_callback(parts.metrics_server.close)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            handle_in_loop(loop, number, self.stop)
        handle_in_loop(loop, signal.SIGHUP, self._reload_by_signal)
        default = parts.pool.default
        log.info("daemon.started", version=__version__, socket=str(self._sockets.clients.path), model=default.name)
        parts.auto_device.look()
        parts.connect_placer()
        parts.manager.load(default)
        self._start_services([parts.pressure, parts.cores, parts.curves, parts.weights, parts.old_cells], stopping)
        stopping.push_async_callback(parts.end_placer)
        stopping.push_async_callback(parts.manager.stop)
        stopping.callback(parts.keep_alive.stop)

    def _start_services(self, services: Iterable[StartedPart], stopping: AsyncExitStack) -> None:
        for service in services:
            service.start()
            stopping.callback(service.stop)

    def _reload_by_signal(self) -> None:
        task = asyncio.create_task(self._reload_or_log(), name="reload")
        self._signalled.add(task)
        task.add_done_callback(self._signalled.discard)

    async def _reload_or_log(self) -> None:
        try:
            await self.reload()
        except ConfigError as error:
            log.error("config.invalid", key=error.key)
