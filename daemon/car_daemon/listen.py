"""The daemon's own listening socket: one daemon a path, and nothing of anybody else's is ever removed."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from car_daemon.directory import BadAddress, Directory, Identity, identity
from car_protocol.socket_path import MAX_PATH_BYTES, fits

_FOR_OTHER_USERS = 0o666
_FOR_THIS_USER = 0o600
# Everything but reading and writing by the owner.
_SOCKET_UMASK = 0o177


class AddressInUse(Exception):
    """Another daemon holds the socket."""


class OwnSocket:
    """A bound socket with the lock that makes it ours; other users can reach a `shared` one.

    `setting` is what the user chose the path by, for the errors.
    """

    def __init__(self, path: Path, *, shared: bool = False, setting: str = "--socket") -> None:
        self.path = path
        self._setting = setting
        if not path.name:
            raise BadAddress(f"{path} is no place for a socket: give {setting} the path of a file to make")
        if not fits(path):
            raise BadAddress(f"the path {path} is longer than {MAX_PATH_BYTES} bytes: choose a shorter {setting}")
        # Mutable state: whether other users can reach it, the directory and the lock in it, the listening socket, and
        # what the path led to when it was bound.
        self._shared = shared
        self._directory, self._lock = _claim(path, setting)
        try:
            self.listener, self._identity = self._bind()
        except BaseException:
            self._give_up()
            raise

    def is_ours(self) -> bool:
        """Tell whether the path still leads to the socket that was bound."""
        return identity(self.path) == self._identity

    def share(self, *, shared: bool) -> None:
        """Have other users reach the socket, or not."""
        before, self._shared = self._shared, shared
        if shared != before and self.is_ours():
            mode = _FOR_OTHER_USERS if shared else _FOR_THIS_USER
            os.chmod(self.path.name, mode, dir_fd=self._directory.descriptor)

    def renew(self, listen: Callable[[socket.socket], None]) -> None:
        """Bind again and listen there, for a path that leads elsewhere; raises BadAddress or AddressInUse."""
        if not self._holds_lock():
            claimed = _claim(self.path, self._setting)
            self._give_up()
            self._directory, self._lock = claimed
        listener, self._identity = self._bind()
        before, self.listener = self.listener, listener
        listen(listener)
        before.close()

    def close(self) -> None:
        """Remove the socket, if it is still the one that was bound, and give up the lock."""
        self.listener.close()
        if self.is_ours():
            self._directory.remove(self.path.name)
        self._give_up()

    def _bind(self) -> tuple[socket.socket, Identity]:
        _remove_stale(self.path, self._directory, self._setting)
        return _bind(self.path, self._directory, shared=self._shared)

    def _holds_lock(self) -> bool:
        """Tell whether another daemon would still find the lock taken."""
        facts = os.fstat(self._lock)
        return identity(_lock_path(self.path)) == (facts.st_dev, facts.st_ino)

    def _give_up(self) -> None:
        os.close(self._lock)
        self._directory.close()


def _claim(path: Path, setting: str) -> tuple[Directory, int]:
    """Return the checked directory and the lock that no other daemon holds."""
    directory = Directory(path.parent, setting)
    try:
        return directory, _lock(path, directory)
    except BaseException:
        directory.close()
        raise


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _lock(path: Path, directory: Directory) -> int:
    name = _lock_path(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(name.name, flags, 0o600, dir_fd=directory.descriptor)
    except OSError as error:
        raise BadAddress(f"cannot make {name}: {os.strerror(error.errno or 0)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise AddressInUse(f"another daemon holds {path}") from error
        raise BadAddress(f"cannot lock {name}: {os.strerror(error.errno or 0)}") from error
    return descriptor


def _bind(path: Path, directory: Directory, *, shared: bool) -> tuple[socket.socket, Identity]:
    """Return a listening socket and the identity of its path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_SOCKET_UMASK)
    try:
        listener.bind(str(path))
        bound = directory.identity(path.name)
        if bound is None:
            raise FileNotFoundError(errno.ENOENT, "bound elsewhere")
        if shared:
            # Whoever may connect is decided by the peer's user, before a byte is read.
            os.chmod(path.name, _FOR_OTHER_USERS, dir_fd=directory.descriptor)
        listener.setblocking(False)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise BadAddress(f"cannot make the socket {path}: {os.strerror(error.errno or 0)}") from error
    finally:
        os.umask(before)
    return listener, bound


def _remove_stale(path: Path, directory: Directory, setting: str) -> None:
    """Remove a socket of ours that nobody answers on; anything else in the way is an error."""
    facts = directory.facts(path.name)
    if facts is None:
        return
    if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.getuid():
        raise BadAddress(f"{path} exists and is no socket of this user: remove it or choose another {setting}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise AddressInUse(f"another program answers on {path}")
    directory.remove(path.name)
