"""`make dev`: the real daemon with scripted engines, until Ctrl-C; answers repeat the words of their prompts."""

import asyncio
import os

from car_daemon.telemetry import logs
from car_protocol.sockets import socket_path
from tools.scripted.daemon import scripted_daemon
from tools.scripted.engine import paced

_STEP_S = 0.05


def main() -> None:
    """Serve on $CAR_SOCKET, or where the client looks."""
    logs.configure("debug", "console")
    daemon, socket = scripted_daemon(socket_path(None, os.environ), paced(_STEP_S))
    try:
        asyncio.run(daemon.run())
    finally:
        socket.close()


if __name__ == "__main__":
    main()
