"""Unhandled exceptions, logged by type and place because their text and their frames may contain input."""

import faulthandler
import signal
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from car_base.host.event_log import log, place_of

if TYPE_CHECKING:
    # Engines import this module, and need no event loop.
    from asyncio import AbstractEventLoop

_STANDARD_ERROR = 2


def report(event: str, error: BaseException, **facts: object) -> None:
    """Log an exception by its type and place."""
    log.error(event, error=type(error).__name__, place=place_of(error), **facts)


def install() -> None:
    """Log uncaught exceptions of the process, which the interpreter would print with their text."""
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable


def dump_stacks_on_signal() -> None:
    """Write the stacks of all threads to standard error on SIGUSR1: files, lines and functions, without values.

    They are written by the signal's handler itself, so that a process that executes no Python any more dumps them too.
    """
    faulthandler.register(signal.SIGUSR1, file=_STANDARD_ERROR)


def loop_failed(_loop: "AbstractEventLoop", context: dict[str, Any]) -> None:
    """Log a failed callback or task of an event loop, whose own handler would print values."""
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
