"""A daemon with scripted engines in a process of its own, which may be killed and started again."""

import os
import subprocess
import sys
from pathlib import Path

from car_client import Client
from tests.pace import HANG_S

ROOT = Path(__file__).parents[2]
SCRIPTED = [sys.executable, "-m", "tools.scripted"]


class ScriptedDaemon:
    """The daemon of `make dev` on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "card.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once its model is served."""
        env = {**os.environ, "CAR_SOCKET": str(self.path)}
        self._process = subprocess.Popen(SCRIPTED, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        with self.client() as client:
            client.load_model(client.models()[0].name)

    def client(self) -> Client:
        """Return a blocking client of it."""
        return Client(self.path, connect_timeout=HANG_S)

    def kill(self) -> None:
        """End it as kill -9 does; nothing happens if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(HANG_S)
            self._process = None
