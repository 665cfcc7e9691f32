"""Exceptions that nobody handled: logged by type and place, since their text and their frames may hold input."""

import asyncio
import sys
from types import TracebackType
from typing import Any

import structlog

from car_daemon.place import place_of

log = structlog.get_logger()


def install() -> None:
    """Keep the interpreter itself from printing exceptions."""
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable


def loop_failed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what an event loop reports; its own handler would print values."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        _report("loop.failed", error)
    else:
        log.error("loop.failed")


def _uncaught(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    _report("daemon.failed", error)


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_value is not None:
        _report("cleanup.failed", unraisable.exc_value)


def _report(event: str, error: BaseException) -> None:
    log.error(event, error=type(error).__name__, place=place_of(error))
