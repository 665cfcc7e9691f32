"""Structured logs on standard error; never a prompt, an answer, an id or the text of an exception."""

import contextlib
import logging
import os
import stat
import time
from typing import Literal, TextIO, cast

import structlog
from msgspec import structs

from car_daemon.log_pipe import LogPipe
from car_protocol.trace import Trace

log = structlog.get_logger()
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]


_STANDARD_ERROR = 2
# So long the last lines may take.
_LAST_LINES_S = 1.0


class StandardError:
    """Standard error without a buffer; where it is closed or full, what is written is lost and nothing else is."""

    def __init__(self) -> None:
        # Mutable state: what is written to in its place, once that must not block, here and in processes of ours: a
        # pipe that a process inherits may block again.
        self._pipe: LogPipe | None = None
        self._inherited: LogPipe | None = None

    @property
    def inherited(self) -> int | None:
        """What processes of ours write to in place of standard error; None where that is it."""
        return None if self._inherited is None else self._inherited.descriptor

    def detach(self) -> None:
        """Wait for no reader from now on; a file is written to as before."""
        if not stat.S_ISREG(os.fstat(_STANDARD_ERROR).st_mode):
            self._pipe, self._inherited = LogPipe(_STANDARD_ERROR), LogPipe(_STANDARD_ERROR)

    def attach(self) -> None:
        """Have what was written read, as far as somebody does, and write there as before."""
        pipes = self._pipe, self._inherited
        self._pipe = self._inherited = None
        ended = [pipe for pipe in pipes if pipe is not None]
        for pipe in ended:
            pipe.end()
        deadline = time.monotonic() + _LAST_LINES_S
        for pipe in ended:
            pipe.join(max(0.0, deadline - time.monotonic()))

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
        """Nothing waits to be written."""


standard_error = StandardError()


def open_standard_streams() -> None:
    """Have the null device for standard streams that are closed: else the next file to be opened takes their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def trace_facts(trace: Trace | None) -> dict[str, str]:
    """Return what every log event of a request says of its trace."""
    return {} if trace is None else structs.asdict(trace)


def configure(level: Level, style: Format) -> None:
    """Set up logging for the process."""
    renderer = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=os.isatty(_STANDARD_ERROR))
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, standard_error)),
    )
