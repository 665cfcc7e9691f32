"""Structured logs on standard error; never a prompt, an answer, an id or the text of an exception."""

import logging
import sys
from typing import Literal

import structlog

log = structlog.get_logger()
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]


def configure(level: Level, style: Format) -> None:
    """Set up logging for the process."""
    renderer = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
