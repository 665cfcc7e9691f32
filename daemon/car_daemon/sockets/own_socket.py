"""The daemon's own listening socket, in a checked directory, and bound again if its path leads elsewhere."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from car_base.host.event_log import log
from car_base.host.timers import Periodic
from car_protocol.sockets import MAX_PATH_BYTES, fits

_OTHERS_MAY_WRITE = 0o022
_OWNER_ONLY_UMASK = 0o077
Identity = tuple[int, int]


class BadAddress(Exception):
    """The socket cannot be made at this address; the message gives the reason and a remedy."""


class Directory:
    """A directory in which only this user and root can replace files; a missing one is made private.

    `setting` names the option that chose it, for the error texts. Raises BadAddress.
    """

    def __init__(self, path: Path, setting: str = "--socket") -> None:
        self.path = path
        before = os.umask(_OWNER_ONLY_UMASK)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise BadAddress(f"cannot use the directory {path}: {reason}; choose another {setting}") from error
        finally:
            os.umask(before)
        try:
            _check(path, os.fstat(self.descriptor), setting)
        except BadAddress:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def facts(self, name: str) -> os.stat_result | None:
        """Return the status of a name, not of the target of a link; None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def identity(self, name: str) -> Identity | None:
        """Return device and inode of a name; None if it does not exist."""
        return _identity(self.facts(name))

    def remove(self, name: str) -> None:
        """Remove a name; a missing one is ignored."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return


def identity(path: Path) -> Identity | None:
    """Return device and inode of a path, not of the target of a link; None if it does not exist."""
    try:
        return _identity(path.lstat())
    except OSError:
        return None


def _identity(facts: os.stat_result | None) -> Identity | None:
    return None if facts is None else (facts.st_dev, facts.st_ino)


def _check(path: Path, facts: os.stat_result, setting: str) -> None:
    if facts.st_uid not in (os.getuid(), 0):
        raise BadAddress(f"the directory {path} belongs to another user: choose another {setting}")
    # If the sticky bit is set, as in /tmp, other users can add names but cannot remove or rename this user's.
    if facts.st_mode & _OTHERS_MAY_WRITE and not facts.st_mode & stat.S_ISVTX:
        raise BadAddress(f"other users may write to {path}: make it private (chmod 700) or choose another {setting}")


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


PERIOD_S = 10.0


class SocketWatch:
    """Checks every `period` seconds, and passes a new socket to `listen`; open connections stay."""

    def __init__(
        self, own_socket: OwnSocket, listen: Callable[[socket.socket], None], period: float = PERIOD_S
    ) -> None:
        self._socket = own_socket
        self._listen = listen
        self._checks = Periodic(period, self._check)
        self._lost = False  # whether the last attempt to bind again failed

    def start(self) -> None:
        """Check from now on, in the running event loop."""
        self._checks.start()

    def stop(self) -> None:
        """Stop checking."""
        self._checks.stop()

    def _check(self) -> None:
        if self._socket.is_ours():
            return
        path = str(self._socket.path)
        try:
            self._socket.renew(self._listen)
        except (BadAddress, AddressInUse, OSError) as error:
            if not self._lost:
                # The text of an OSError may contain a path; strerror has none.
                why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
                log.warning("socket.lost", socket=path, why=why)
            self._lost = True
            return
        self._lost = False
        log.warning("socket.bound_again", socket=path, why="the path led elsewhere")
