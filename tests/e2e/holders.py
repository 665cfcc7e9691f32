"""Processes of one user that each begin a frame and do not end it, until standard input ends: UID PATH COUNT BYTES."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from tests.e2e.users import connect_as


def _hold(uid: int, path: Path, size: int) -> None:
    with connect_as(uid, path) as client:
        # Sending fails in the processes that the daemon ends.
        with suppress(ConnectionError):
            client.send_bytes(b"{" * size)
        os.write(1, b".")
        sys.stdin.read()


def _main() -> None:
    uid, path, processes, size = sys.argv[1:]
    children = []
    for _ in range(int(processes)):
        child = os.fork()
        if not child:
            _hold(int(uid), Path(path), int(size))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main()
