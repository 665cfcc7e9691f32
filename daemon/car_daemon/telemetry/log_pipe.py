"""A pipe to standard error that never blocks its writers: when its reader is stuck, lines are dropped."""

import contextlib
import os
import select
from threading import Thread

_READ_BYTES = 64 * 1024
_LINE_BYTES = 4096  # written to a pipe whole or not at all (PIPE_BUF)
_TURN_MS = 20  # enough for the reading thread to get the interpreter and make room


class LogPipe:
    """Buffers lines in a pipe and copies them to `target` in a thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._room = select.poll()
        self._room.register(self._writing, select.POLLOUT)
        self._thread = Thread(target=self._copy, name="log", daemon=True)
        self._full = False  # lines are dropped until one fits again
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Write a line, cut to 4096 bytes; drop it if the pipe stays full for 20 ms."""
        if len(line) > _LINE_BYTES:
            line = line[: _LINE_BYTES - 1] + b"\n"
        if not self._fits(line) and not self._full:
            self._full = True
            self._room.poll(_TURN_MS)
            self._fits(line)

    def end(self) -> None:
        """Close the writing end."""
        os.close(self._writing)

    def join(self, seconds: float) -> None:
        """Wait until all lines are copied, for at most `seconds`."""
        self._thread.join(seconds)

    def _fits(self, line: bytes) -> bool:
        try:
            os.write(self._writing, line)
        except BlockingIOError:
            return False
        self._full = False
        return True

    def _copy(self) -> None:
        while data := os.read(self._reading, _READ_BYTES):
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._target, data) :]
        os.close(self._reading)
