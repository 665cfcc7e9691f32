"""Exceptions that nobody handled: logged by type and place, since their text and their frames may hold input."""

import asyncio
import sys
from types import TracebackType
from typing import Any

import structlog

from car_daemon.place import place_of

log = structlog.get_logger()


def report(event: str, error: BaseException, **facts: object) -> None:
    """Log a defect by the type and the place of its exception."""
    log.error(event, error=type(error).__name__, place=place_of(error), **facts)


def install() -> None:
    """Keep the interpreter itself from printing exceptions."""
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable


def loop_failed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what an event loop reports; its own handler would print values."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        report("loop.failed", error)
    else:
        log.error("loop.failed")


def _uncaught(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    report("daemon.failed", error)


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_value is not None:
        report("cleanup.failed", unraisable.exc_value)
