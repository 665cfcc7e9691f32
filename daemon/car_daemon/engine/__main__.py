"""Entry of the engine process: `python -m car_daemon.engine FD` with a connected socket to the daemon."""

import os
import socket
import stat
import sys

from car_daemon.engine.confinement import confine
from car_daemon.engine.process import EngineProcess

_STANDARD_ERROR = 2


def main() -> None:
    """Serve the daemon at the other end of the inherited socket until it says quit or goes away."""
    confine()
    _never_wait_for_readers()
    daemon = socket.socket(fileno=int(sys.argv[1]))
    code = EngineProcess(daemon).serve()
    # The loop thread may be inside llama_decode: there is nothing to wait for once nobody reads the answers.
    os._exit(code)


def _never_wait_for_readers() -> None:
    """Lose what is written to standard error where nobody reads it: libraries write there when they end the process."""
    if stat.S_ISFIFO(os.fstat(_STANDARD_ERROR).st_mode):
        os.set_blocking(_STANDARD_ERROR, False)


main()
