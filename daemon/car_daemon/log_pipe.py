"""A pipe to standard error that nobody waits at: where its reader does not read, lines are lost and nothing stops."""

import contextlib
import os
import select
from threading import Thread

_READ_BYTES = 64 * 1024
# A pipe takes so much whole or not at all.
_LINE_BYTES = 4096
# A full pipe whose reader reads has room again by then: its thread only has to have its turn.
_TURN_MS = 20


class LogPipe:
    """Takes lines, up to what a pipe holds, and passes them on to `target` in a thread.

    `descriptor` may be inherited by other processes, which have to see for themselves that it does not block.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._room = select.poll()
        self._room.register(self.descriptor, select.POLLOUT)
        self._thread = Thread(target=self._pass_on, name="log", daemon=True)
        # Mutable state: whether nobody read for a turn, so that lines are lost until one fits again.
        self._full = False
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Take a line, whose end is cut where it is too long; it is lost where nobody reads. Waits a turn at most."""
        if len(line) > _LINE_BYTES:
            line = line[: _LINE_BYTES - 1] + b"\n"
        if not self._fits(line) and not self._full:
            self._full = True
            self._room.poll(_TURN_MS)
            self._fits(line)

    def end(self) -> None:
        """Take nothing more; other processes that write here have to be gone."""
        os.close(self.descriptor)

    def join(self, seconds: float) -> None:
        """Return once all was passed on, or after so many seconds."""
        self._thread.join(seconds)

    def _fits(self, line: bytes) -> bool:
        try:
            os.write(self.descriptor, line)
        except BlockingIOError:
            return False
        self._full = False
        return True

    def _pass_on(self) -> None:
        while data := os.read(self._reading, _READ_BYTES):
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._target, data) :]
        os.close(self._reading)
