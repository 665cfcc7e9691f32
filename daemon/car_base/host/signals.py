"""Signals: handlers in the event loop; signals without a meaning are ignored, because their default ends a process."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Engines import this module, and need no event loop.
    from asyncio import AbstractEventLoop

# SIGUSR1 is ignored until a process can dump its stacks on it.
_STRAY = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")


def handle_in_loop(loop: "AbstractEventLoop", number: signal.Signals, callback: Callable[[], object]) -> None:
    """Call back in an event loop for each signal of a number.

    Not by the loop's own `add_signal_handler`: removing that restores the default for a moment, which ends the process.
    """
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))


def ignore_stray_signals() -> None:
    """Ignore the user, timer and real-time signals, as far as the platform has them."""
    numbers = [number for name in _STRAY if (number := getattr(signal, name, None)) is not None]
    if hasattr(signal, "SIGRTMIN"):
        numbers += range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
