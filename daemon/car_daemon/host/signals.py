"""Signals that have no meaning here: their default would end a process without a drain."""

import signal

# SIGUSR1 is ignored until a process can dump its stacks on it.
_STRAY = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")


def ignore_stray_signals() -> None:
    """Ignore the user, timer and real-time signals, as far as the platform has them."""
    numbers = [number for name in _STRAY if (number := getattr(signal, name, None)) is not None]
    if hasattr(signal, "SIGRTMIN"):
        numbers += range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
