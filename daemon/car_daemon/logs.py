"""Structured logs on standard error; never a prompt, an answer, an id or the text of an exception."""

import contextlib
import logging
import os
from typing import Literal, TextIO, cast

import structlog
from msgspec import structs

from car_protocol.trace import Trace

log = structlog.get_logger()
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]


_STANDARD_ERROR = 2


class StandardError:
    """Standard error without a buffer; where it is closed or full, what is written is lost and nothing else is."""

    def write(self, text: str) -> int:
        """Write text; return its length."""
        with contextlib.suppress(OSError):
            os.write(_STANDARD_ERROR, text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Nothing waits to be written."""


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
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, StandardError())),
    )
