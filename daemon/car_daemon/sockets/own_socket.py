"""The daemon's own listening socket: one daemon a path; files of other programs are never removed."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from car_daemon.sockets.directory import BadAddress, Directory, Identity, identity
from car_protocol.socket_path import MAX_PATH_BYTES, fits

_FOR_OTHER_USERS = 0o666
_FOR_THIS_USER = 0o600
# All permissions except reading and writing by the owner.
_SOCKET_UMASK = 0o177


class AddressInUse(Exception):
    """Another program serves the socket."""


class OwnSocket:
    """A bound socket and the lock on its path; other users can connect to a `shared` one.

    `setting` names the option that chose the path, for the error texts. Raises BadAddress or AddressInUse.
    """

    def __init__(self, path: Path, *, shared: bool = False, setting: str = "--socket") -> None:
        self.path = path
        self._setting = setting
        if not path.name:
            raise BadAddress(f"{path} cannot name a socket: give {setting} the path of a file to make")
        if not fits(path):
            raise BadAddress(f"the path {path} is longer than {MAX_PATH_BYTES} bytes: choose a shorter {setting}")
        self._shared = shared  # with other users
        self._directory, self._lock = _claim(path, setting)
        try:
            self.listener, self._identity = self._bind()  # the identity is that of the path once bound
        except BaseException:
            self._unlock()
            raise

    def is_ours(self) -> bool:
        """Return whether the path still leads to the socket that was bound."""
        return identity(self.path) == self._identity

    def set_shared(self, *, shared: bool) -> None:
        """Let other users connect, or only this one."""
        before, self._shared = self._shared, shared
        if shared != before and self.is_ours():
            mode = _FOR_OTHER_USERS if shared else _FOR_THIS_USER
            os.chmod(self.path.name, mode, dir_fd=self._directory.descriptor)

    def renew(self, listen: Callable[[socket.socket], None]) -> None:
        """Bind a path that leads elsewhere again and pass the socket to `listen`; raises BadAddress or AddressInUse."""
        facts = os.fstat(self._lock)
        if identity(_lock_path(self.path)) != (facts.st_dev, facts.st_ino):
            # Another daemon would find the path unlocked.
            claimed = _claim(self.path, self._setting)
            self._unlock()
            self._directory, self._lock = claimed
        listener, self._identity = self._bind()
        before, self.listener = self.listener, listener
        listen(listener)
        before.close()

    def close(self) -> None:
        """Remove the socket unless another file took its place, and unlock the path."""
        self.listener.close()
        if self.is_ours():
            self._directory.remove(self.path.name)
        self._unlock()

    def _bind(self) -> tuple[socket.socket, Identity]:
        """Bind the path, in place of a socket of this user that no program answers on."""
        path, facts = self.path, self._directory.facts(self.path.name)
        if facts is not None:
            if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.getuid():
                text = f"{path} exists and is not a socket of this user: remove it or choose another {self._setting}"
                raise BadAddress(text)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)
                if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                    raise AddressInUse(f"another program answers on {path}")
            self._directory.remove(path.name)
        return _bind(self.path, self._directory, shared=self._shared)

    def _unlock(self) -> None:
        os.close(self._lock)
        self._directory.close()


def _claim(path: Path, setting: str) -> tuple[Directory, int]:
    """Return the checked directory and the descriptor of this process's lock in it."""
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
            raise AddressInUse(f"another daemon serves {path}") from error
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
            # The server checks the peer's user before it reads a byte.
            os.chmod(path.name, _FOR_OTHER_USERS, dir_fd=directory.descriptor)
        listener.setblocking(False)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise BadAddress(f"cannot make the socket {path}: {os.strerror(error.errno or 0)}") from error
    finally:
        os.umask(before)
    return listener, bound
