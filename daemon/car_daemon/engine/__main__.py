"""Entry of the engine process: `python -m car_daemon.engine FD` with a connected socket to the daemon."""

import os
import socket
import sys

from car_daemon.engine.confinement import confine
from car_daemon.engine.process import EngineProcess


def main() -> None:
    """Serve the daemon at the other end of the inherited socket until it says quit or goes away."""
    confine()
    daemon = socket.socket(fileno=int(sys.argv[1]))
    code = EngineProcess(daemon).serve()
    # The loop thread may be inside llama_decode: there is nothing to wait for once nobody reads the answers.
    os._exit(code)


main()
