"""Messages about this process to a service manager (sd_notify); without a manager none are sent."""

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Self

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
