"""A pipe to standard error that nobody waits at: where its reader does not read, lines are lost and nothing stops."""

import contextlib
import os
from threading import Thread

_READ_BYTES = 64 * 1024
# So long the last lines may take.
_PATIENCE_S = 1.0


class LogPipe:
    """Takes text without blocking, up to what a pipe holds; a thread passes it on to `target`.

    `descriptor` may be inherited by other processes, which have to see for themselves that it does not block.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._thread = Thread(target=self._pass_on, name="log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass on what waits, as far as somebody reads it; the other processes have to be gone."""
        os.close(self.descriptor)
        self._thread.join(_PATIENCE_S)

    def _pass_on(self) -> None:
        while data := os.read(self._reading, _READ_BYTES):
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._target, data) :]
        os.close(self._reading)
