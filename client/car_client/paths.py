"""The sockets that a client tries, connecting to the first that answers, and the error that names them."""

import socket
import time
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path

from car_client.errors import BadSocketPath, ConnectTimeout
from car_client.retry import Deadline, backoff
from car_protocol.sockets import MAX_PATH_BYTES, candidate_paths, fits


def usable_paths(path: str | PathLike[str] | None) -> list[Path]:
    """Return the paths to try in turn; raises BadSocketPath if a path is too long."""
    paths = candidate_paths(None if path is None else fspath(path))
    for each in paths:
        if not fits(each):
            raise BadSocketPath(f"the socket path is longer than {MAX_PATH_BYTES} bytes: {each}")
    return paths


def connect(paths: list[Path], timeout_s: float = 0.0, pause: Callable[[float], None] = time.sleep) -> socket.socket:
    """Return a socket connected to the first path on which a daemon listens, trying at least once and for `timeout_s`.

    Raises ConnectTimeout.
    """
    deadline = Deadline(timeout_s)
    for delay in backoff():
        failures = {}
        for path in paths:
            try:
                return _connected(path)
            except OSError as error:
                failures[path] = error
        if not (delay := deadline.bound(delay)):
            raise unavailable(paths, failures)
        pause(delay)
    raise AssertionError("the backoff has no end")


def unavailable(paths: list[Path], failures: Mapping[Path, OSError]) -> ConnectTimeout:
    """Return the error that names each path tried and the reason for its failure."""
    tried = ", ".join(f"{path} ({_reason(path, failures.get(path))})" for path in paths)
    return ConnectTimeout(f"no daemon answers on {tried}", tuple(paths))


def _connected(path: Path) -> socket.socket:
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Without blocking this fails at once if the daemon's backlog is full, and the next attempt may succeed.
    connecting.setblocking(False)
    try:
        connecting.connect(str(path))
    except BaseException:
        connecting.close()
        raise
    connecting.setblocking(True)
    return connecting


def _reason(path: Path, error: OSError | None) -> str:
    if isinstance(error, ConnectionRefusedError) and not path.is_socket():
        return "not a socket"
    return error.strerror.lower() if error and error.strerror else "no answer"
