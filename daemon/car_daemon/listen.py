"""The daemon's own listening socket: one daemon a path, and nothing of anybody else's is ever removed."""

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from car_protocol.socket_path import MAX_PATH_BYTES, fits

_PRIVATE_DIRECTORY = 0o700
_FOR_OTHER_USERS = 0o666
_OTHERS_MAY_WRITE = 0o022
# Everything but reading and writing by the owner.
_SOCKET_UMASK = 0o177


class AddressInUse(Exception):
    """Another daemon holds the socket."""


class BadAddress(Exception):
    """The socket cannot be made there; the message says why and what to do."""


class OwnSocket:
    """A bound socket with the lock that makes it ours; other users can reach a `shared` one."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self.path = path
        if not path.name:
            raise BadAddress(f"{path} is no place for a socket: give --socket the path of a file to make")
        if not fits(path):
            raise BadAddress(f"the socket path {path} is longer than {MAX_PATH_BYTES} bytes: choose a shorter --socket")
        _check_directory(path.parent)
        self._lock = _lock(path)
        try:
            self.listener = _bind(path)
        except BaseException:
            os.close(self._lock)
            raise
        if shared:
            # Whoever may connect is decided by the peer's user, before a byte is read.
            path.chmod(_FOR_OTHER_USERS)
        self._identity = _identity(path)

    def close(self) -> None:
        """Remove the socket, if it is still the one that was made, and give up the lock."""
        self.listener.close()
        if _identity(self.path) == self._identity:
            self.path.unlink()
        os.close(self._lock)


def _check_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        facts = directory.stat()
    except OSError as error:
        raise BadAddress(f"cannot use the directory {directory}: {os.strerror(error.errno or 0)}") from error
    if facts.st_uid not in (os.getuid(), 0):
        raise BadAddress(f"the directory {directory} belongs to another user: choose another --socket")
    if facts.st_mode & _OTHERS_MAY_WRITE and not facts.st_mode & stat.S_ISVTX:
        raise BadAddress(f"others may write to {directory}: make it private (chmod 700) or choose another --socket")


def _lock(path: Path) -> int:
    name = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadAddress(f"cannot make {name}: {os.strerror(error.errno or 0)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AddressInUse(f"another daemon holds {path}") from error
    return descriptor


def _bind(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_SOCKET_UMASK)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise BadAddress(f"cannot make the socket {path}: {os.strerror(error.errno or 0)}") from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    listener.listen(socket.SOMAXCONN)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket of ours that nobody answers on; anything else in the way is an error."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.getuid():
        raise BadAddress(f"{path} exists and is no socket of this user: remove it or choose another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise AddressInUse(f"another program answers on {path}")
    path.unlink()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
