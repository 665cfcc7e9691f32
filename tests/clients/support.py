"""The daemon of `make dev`, with scripted engines, in a process of its own."""

import sys
from pathlib import Path

from tests.e2e.support import Daemon

SCRIPTED = [sys.executable, "-m", "tools.scripted"]


def scripted_daemon(folder: Path) -> Daemon:
    """Start it on a socket in a folder, and return it once its model is served."""
    return Daemon(folder, program=SCRIPTED, CAR_SOCKET=str(folder / "card.sock")).ready()
