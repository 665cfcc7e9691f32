"""Logging on standard error; events never contain a prompt, an answer, an id or the text of an exception."""

import contextlib
import os
import stat
from collections.abc import Callable

from msgspec import structs

from car_base.host.event_log import Format, Level, Sink, log, printable, timestamp
from car_daemon.telemetry.log_pipe import LogPipe
from car_protocol.trace import Trace

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
