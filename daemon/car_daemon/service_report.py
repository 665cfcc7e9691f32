"""What a service manager hears of the daemon: that it is ready, what it loads, and that it still works."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from car_daemon.models.entry import ModelEntry
from car_daemon.notify import Notifier
from car_daemon.periodic import Periodic

log = structlog.get_logger()
_PERIOD_S = 5.0
# Several pings fall into the manager's patience: one that is left out for a moment's lag costs nothing.
_PINGS = 4
_EXTENSION_S = 60.0
_MOST_LAG_MS = 1000.0
_MOST_SILENCE_S = 10.0


class Health:
    """Whether the daemon works: its event loop is on time, and every engine that serves `model` was heard of late."""

    def __init__(self, model: ModelEntry, loop_lag_ms: Callable[[], float], clock: Callable[[], float]) -> None:
        self._model = model
        self._loop_lag_ms = loop_lag_ms
        self._clock = clock

    def fault(self) -> str | None:
        """Return what is wrong, None where nothing is; between two engines nothing is."""
        if self._loop_lag_ms() >= _MOST_LAG_MS:
            return "the event loop is late"
        heard = [replica.counters.at for replica in self._model.serving if replica.counters.at]
        if self._model.state == "ready" and heard and self._clock() - min(heard) > _MOST_SILENCE_S:
            return "no heartbeat of the engine"
        return None


class ServiceReport:
    """Says READY once the default model has decoded; pings while `fault` returns None."""

    def __init__(self, notifier: Notifier, model: ModelEntry, fault: Callable[[], str | None]) -> None:
        self._notifier = notifier
        self._model = model
        self._fault = fault
        self._pings = Periodic(min(_PERIOD_S, (notifier.watchdog_s or math.inf) / _PINGS), self._ping)
        # Mutable state: whether READY was sent, whether the daemon goes down, the last status, and whether the last
        # ping was left out.
        self._ready = False
        self._stopping = False
        self._status = ""
        self._silent = False

    def start(self) -> None:
        """Report from now on, in the running event loop."""
        self._pings.start()
        self._ping()

    def stop(self) -> None:
        """Report no more."""
        self._pings.stop()

    def changed(self) -> None:
        """Take note that the default model's state may have changed."""
        if self._stopping:
            return
        if self._model.state == "ready" and not self._ready:
            self._ready = True
            self._notifier.ready()
        self._tell(_described(self._model))

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Tell that the configuration is read again for the length of a block, however it ends."""
        # Before the first READY the manager waits for that one.
        if not self._ready:
            yield
            return
        self._notifier.reloading()
        try:
            yield
        finally:
            self._notifier.ready()

    def draining(self, seconds: float) -> None:
        """Tell that the daemon stops within so many seconds."""
        self._stopping = True
        self._notifier.stopping()
        self._notifier.extend(seconds)
        self._tell("draining")

    def _ping(self) -> None:
        self.changed()
        if not (self._ready or self._stopping):
            self._notifier.extend(_EXTENSION_S)
        fault = self._fault()
        if fault is None:
            self._notifier.alive()
        elif not self._silent:
            log.warning("watchdog.held_back", why=fault)
        self._silent = fault is not None

    def _tell(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._notifier.status(status)


def _described(model: ModelEntry) -> str:
    """Return a line that names no path and quotes nobody."""
    if model.state == "loading":
        return f"loading {model.name}: {model.progress:.0%}"
    if model.state == "ready":
        sequences = sum(replica.ready.sequences for replica in model.serving if replica.ready is not None)
        return f"serving {model.name} on {model.device}, {sequences} at once"
    return f"{model.name}: {model.state}"
