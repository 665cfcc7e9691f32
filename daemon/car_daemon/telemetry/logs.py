"""Logging on standard error through a pipe that never blocks; no event contains a prompt, an answer or an id."""

import contextlib
import os
import select
import stat
from collections.abc import Callable
from threading import Thread

from msgspec import structs

from car_base.host.event_log import Format, Level, Sink, log, printable, timestamp
from car_protocol.meta import Trace

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


_STANDARD_ERROR = 2
_LAST_LINES_S = 1.0  # to copy the last lines at the end of the process


class StandardError:
    """Standard error without a buffer; text is dropped when it is closed or full."""

    def __init__(self) -> None:
        self._pipe: LogPipe | None = None  # written to instead, once detached

    def detach(self) -> None:
        """Write through a pipe from now on, so that no reader blocks the daemon; files are written to directly."""
        if not stat.S_ISREG(os.fstat(_STANDARD_ERROR).st_mode):
            self._pipe = LogPipe(_STANDARD_ERROR)

    def attach(self) -> None:
        """Copy the lines in the pipe, for at most a second, and write directly again."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.end()
            pipe.join(_LAST_LINES_S)

    def write(self, text: str) -> int:
        """Write text; return its length."""
        data = text.encode(errors="backslashreplace")
        if self._pipe is not None:
            self._pipe.write(data)
        else:
            with contextlib.suppress(OSError):
                os.write(_STANDARD_ERROR, data)
        return len(text)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


standard_error = StandardError()


def open_standard_streams() -> None:
    """Open the null device for closed standard streams, whose descriptors the next opened file would get."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def trace_facts(trace: Trace | None) -> dict[str, str]:
    """Return the trace's facts for the log events of a request."""
    return {} if trace is None else structs.asdict(trace)


def configure(level: Level, style: Format) -> None:
    """Render events of this level and above on standard error; imports structlog, which takes 0.1 s the first time."""
    colours = style == "console" and os.isatty(_STANDARD_ERROR)
    log.configure(level, rendering(style, standard_error.write, colours=colours))


def rendering(style: Format, write: Callable[[str], object], *, colours: bool) -> Sink:
    """Return a sink that writes every event as a line: JSON, or text for people."""
    import structlog  # the daemon serves its first clients before this is needed

    json = structlog.processors.JSONRenderer()
    console = structlog.dev.ConsoleRenderer(colors=colours)
    render = json if style == "json" else console

    def sink(level: Level, event: str, facts: dict[str, object]) -> None:
        if style == "console":
            # The renderer itself writes texts as they are; JSON escapes them.
            event = printable(event)
            facts = {name: printable(each) if isinstance(each, str) else each for name, each in facts.items()}
        line = render(None, level, {"timestamp": timestamp(), **facts, "event": event, "level": level})
        write(f"{line!s}\n")

    return sink
