"""The daemon's reports to a service manager: readiness, progress of the load, and the watchdog's pings."""

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Self

from car_base.host.event_log import log
from car_base.host.timers import Periodic
from car_daemon.models.entry import ModelEntry

_MICROSECONDS = 1_000_000


class Notifier:
    """Sends datagrams to the socket at `address`, which begins with / or, for an abstract one, with @.

    The manager ends a process that sends no `alive` for `watchdog_s` seconds.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address and address[0] == "@" else address
        self.watchdog_s = watchdog_s

    @classmethod
    def of_environment(cls, env: MutableMapping[str, str] = os.environ) -> Self:
        """Take the manager's variables out of the environment, so that no child process sends messages too."""
        address = env.pop("NOTIFY_SOCKET", None)
        microseconds = env.pop("WATCHDOG_USEC", "")
        process = env.pop("WATCHDOG_PID", str(os.getpid()))
        if process != str(os.getpid()) or not (microseconds.isascii() and microseconds.isdigit()):
            return cls(address)
        return cls(address, int(microseconds) / _MICROSECONDS or None)

    def ready(self) -> None:
        """The service is up, or its reload is done."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Describe the present work in one line."""
        # Without line ends, because each would begin another field.
        self._send(f"STATUS={' '.join(text.split())}")

    def stopping(self) -> None:
        """The service goes down."""
        self._send("STOPPING=1")

    def reloading(self) -> None:
        """The service reads its configuration again; `ready` ends it."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={microseconds}")

    def extend(self, seconds: float) -> None:
        """The start or stop in progress may take this long from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * _MICROSECONDS)}")

    def alive(self) -> None:
        """The service works: the manager's watchdog starts again."""
        self._send("WATCHDOG=1")

    def _send(self, *fields: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that is slow to read must not block the event loop.
            sender.setblocking(False)
            sender.sendto("\n".join(fields).encode(), self._address)


_PERIOD_S = 5.0
# Several pings fall into the watchdog's timeout, so that one left out for a moment's lag has no effect.
_PINGS = 4
_EXTENSION_S = 60.0
_MOST_LAG_MS = 1000.0
_MOST_SILENCE_S = 10.0


class Readiness:
    """The daemon's health: its event loop is on time, and every engine of the default model sent a recent heartbeat."""

    def __init__(
        self, default: Callable[[], ModelEntry], loop_lag_ms: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._default = default
        self._loop_lag_ms = loop_lag_ms
        self._clock = clock

    def fault(self) -> str | None:
        """Return the fault, None without one; a model between two engines is healthy."""
        if self._loop_lag_ms() >= _MOST_LAG_MS:
            return "the event loop is late"
        model = self._default()
        beats = [replica.counters.at for replica in model.replicas.serving if replica.counters.at]
        if model.state == "ready" and beats and self._clock() - min(beats) > _MOST_SILENCE_S:
            return "no heartbeat of the engine"
        return None


class ServiceReport:
    """Sends READY once the default model has decoded; pings while `fault` returns None."""

    def __init__(self, notifier: Notifier, default: Callable[[], ModelEntry], fault: Callable[[], str | None]) -> None:
        self._notifier = notifier
        self._default = default
        self._fault = fault
        self._pings = Periodic(min(_PERIOD_S, (notifier.watchdog_s or math.inf) / _PINGS), self._ping)
        self._ready = False  # READY was sent
        self._stopping = False
        self._status = ""  # sent last
        self._silent = False  # the last ping was left out

    def start(self) -> None:
        """Begin to report, in the running event loop."""
        self._pings.start()
        self._ping()

    def stop(self) -> None:
        """End the pings."""
        self._pings.stop()

    def changed(self) -> None:
        """Report the default model's state if it changed."""
        if self._stopping:
            return
        model = self._default()
        if model.state == "ready" and not self._ready:
            self._ready = True
            self._notifier.ready()
        if model.state == "loading":
            self._report(f"loading {model.name}: {model.replicas.progress:.0%}")
        elif model.state == "ready":
            sequences = sum(replica.ready.sequences for replica in model.replicas.serving if replica.ready is not None)
            self._report(f"serving {model.name} on {model.replicas.device}, {sequences} at once")
        else:
            self._report(f"{model.name}: {model.state}")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Report a reload for the length of a block, also if the block raises."""
        # Left out before the first READY, because the manager waits for that.
        if not self._ready:
            yield
            return
        self._notifier.reloading()
        try:
            yield
        finally:
            self._notifier.ready()

    def draining(self, seconds: float) -> None:
        """Report that the daemon stops within `seconds`."""
        self._stopping = True
        self._notifier.stopping()
        self._notifier.extend(seconds)
        self._report("draining")

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

    def _report(self, status: str) -> None:
        """Send a line, which contains no path and no words of clients, if it is new."""
        if status != self._status:
            self._status = status
            self._notifier.status(status)
