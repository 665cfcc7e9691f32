"""Which sockets a client tries, and how it says that none of them answered."""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path

from car_client.errors import BadSocketPath, DaemonUnavailable
from car_protocol.socket_path import MAX_PATH_BYTES, candidate_paths, fits


def usable_paths(path: str | PathLike[str] | None) -> list[Path]:
    """Return the paths to try in turn; raises BadSocketPath where one is too long."""
    paths = candidate_paths(None if path is None else fspath(path))
    for each in paths:
        if not fits(each):
            raise BadSocketPath(f"the socket path is longer than {MAX_PATH_BYTES} bytes: {each}")
    return paths


def unavailable(paths: list[Path], failures: Mapping[Path, OSError]) -> DaemonUnavailable:
    """Return the error that names each path tried and why it did not answer."""
    tried = ", ".join(f"{path} ({_why(path, failures.get(path))})" for path in paths)
    return DaemonUnavailable(f"no daemon answers on {tried}", tuple(paths))


def _why(path: Path, error: OSError | None) -> str:
    if isinstance(error, ConnectionRefusedError) and not path.is_socket():
        return "not a socket"
    return error.strerror.lower() if error and error.strerror else "no answer"
