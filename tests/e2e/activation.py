"""The service manager's part of socket activation: a listening socket that outlives every daemon on it."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.e2e.support import BIN, CANARY, PATIENCE_S, RawClient, environment_of

# LISTEN_PID is the daemon's own process id, and the sockets begin at descriptor 3.
_SCRIPT = 'LISTEN_PID=$$; export LISTEN_PID; exec "$@"'


class Holder:
    """Holds a listening socket, and starts one daemon after the other on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "card.sock"
        self.log = folder / "log"
        self._folder = folder
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen(1024)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start a daemon."""
        with self.log.open("ab") as log:
            self.process = activated([self.listener], self._folder, *arguments, log=log, **environment)
        return self.process

    def connect(self) -> RawClient:
        """Return a connection, to a daemon that may come later."""
        return RawClient(self.path)

    def stop(self) -> int:
        """End the daemon as a service manager would; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End everything."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.listener.close()
        assert CANARY not in self.log.read_text(), "text of a prompt reached the log"


@contextmanager
def holder() -> Iterator[Holder]:
    """Hold a listening socket for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        held = Holder(Path(name))
        try:
            yield held
        finally:
            held.close()


def activated(
    sockets: Sequence[Any], folder: Path, *arguments: str, log: IO[bytes] | int, **environment: str
) -> "subprocess.Popen[bytes]":
    """Start a daemon that is handed these sockets, or whatever else has a descriptor, from descriptor 3 on."""
    # Copies far above: else placing one of them could close another.
    copies = [os.dup2(each.fileno(), 100 + number) for number, each in enumerate(sockets)]
    places = "".join(f"exec {3 + number}<&{copy} {copy}<&-; " for number, copy in enumerate(copies))
    env = environment_of(folder) | {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": "rpc", **environment}
    try:
        return subprocess.Popen(
            ["bash", "-c", places + _SCRIPT, "bash", BIN / "card", *arguments],
            env=env,
            pass_fds=copies,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    finally:
        for copy in copies:
            os.close(copy)
