"""Exceptions that nobody handled: logged by type and place, since their text and their frames may hold input."""

import asyncio
import sys
import traceback
from types import TracebackType
from typing import Any

import structlog

log = structlog.get_logger()


def place_of(error: BaseException) -> str:
    """Return the module and line that raised an exception."""
    last = None
    for last in traceback.walk_tb(error.__traceback__):  # noqa: B007 - only the last one counts
        pass
    return "unknown" if last is None else f"{last[0].f_globals.get('__name__')}:{last[1]}"


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
