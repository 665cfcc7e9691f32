"""A server as a child process, for the length of a block."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

START_S = 60.0
_POLL_S = 0.05


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, its output unseen, and end it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=START_S)


def free_port() -> int:
    """Return a port of the loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a URL answers with success."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(_POLL_S)
    raise RuntimeError(f"{process.args!r} does not answer")
