"""Entry of the `card` command."""

import gc
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the daemon; exits 0 after a clean stop."""
    # Until a configuration can be read again there is nothing to hang up on.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Collecting while modules load takes 6 ms of every start and finds nothing; what they hold stays for good.
    gc.disable()
    # Imported by others where they are installed: by structlog for tracebacks that the daemon never prints, 100 ms of
    # every start; by msgspec for what this Python's own typing has, 2 ms.
    for needless in ("rich", "typing_extensions"):
        sys.modules[needless] = None  # type: ignore[assignment]  # what makes an import of it fail
    from car_daemon.command import run

    gc.freeze()
    gc.enable()
    sys.exit(run(sys.argv[1:]))
