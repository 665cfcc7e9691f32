"""The standard error of a process that may mean harm, passed on by lines: printable, bounded in length and rate."""

import asyncio
import contextlib
import os
from collections.abc import Callable

# Twice the stacks of an engine's threads, as it writes them when it crashes.
_BURST = 16 * 1024
# Characters a second, by which a process adds less than 1 MiB an hour to a log.
_RATE = 256.0
_LONGEST = 1024
# Few, because a line is written with its name: beyond the burst a turn writes no more than so many names.
_READ_BYTES = 512
_PAUSE_S = 1.0


class LineRelay:
    """Reads the pipe of a process's standard error and passes each line to `write`, after the process's name.

    A process writes 16 KiB at once and 256 characters a second. Further text stays in its pipe, and is lost if the pipe
    is full or the process ends. A line of more than 1,024 bytes is several.
    """

    def __init__(
        self, descriptor: int, name: str, write: Callable[[str], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._name = name
        self._write = write
        self._loop = loop
        self._begun = b""  # of a line that has no end yet
        self._left: float = _BURST  # characters that may be written now; less than none where a turn wrote more
        self._counted_at = loop.time()
        self._pause: asyncio.TimerHandle | None = None
        self._ended = False
        loop.add_reader(descriptor, self._read)

    def __repr__(self) -> str:
        return f"<LineRelay of {self._name} left={self._left:.0f}>"

    async def run(self, process: asyncio.subprocess.Process) -> None:
        """Pass lines on until the process is gone."""
        try:
            await process.wait()
        finally:
            self.end()

    def end(self) -> None:
        """Pass on what is in the pipe, as far as it may be written now, and close the descriptor."""
        if self._ended:
            return
        self._ended = True
        self._stop()
        self._refill()
        with contextlib.suppress(BlockingIOError):
            while self._left > 0 and (data := os.read(self._descriptor, _READ_BYTES)):
                self._take(data)
        if self._begun:
            self._pass_on(self._begun)
        os.close(self._descriptor)

    def _read(self) -> None:
        self._refill()
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            # The process closed it.
            self._loop.remove_reader(self._descriptor)
            return
        self._take(data)
        if self._left <= 0:
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(max(_PAUSE_S, -self._left / _RATE), self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._descriptor, self._read)

    def _stop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._pause is not None:
            self._pause.cancel()

    def _refill(self) -> None:
        now = self._loop.time()
        self._left = min(_BURST, self._left + (now - self._counted_at) * _RATE)
        self._counted_at = now

    def _take(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._begun) >= _LONGEST:
            self._pass_on(self._begun)
            self._begun = b""

    def _pass_on(self, line: bytes) -> None:
        text = f"{self._name}: {printable(line)}\n"
        self._left -= len(text)
        self._write(text)


def printable(line: bytes) -> str:
    """Return a line as text without anything that a terminal would act on or a log take for another line."""
    text = line.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
