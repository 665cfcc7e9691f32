"""The directory of a socket, checked and used through one open descriptor."""

import os
import stat
from pathlib import Path

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
        """Return the status of a name, not of the target of a link; None where it does not exist."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def identity(self, name: str) -> Identity | None:
        """Return device and inode of a name; None where it does not exist."""
        return _identity(self.facts(name))

    def remove(self, name: str) -> None:
        """Remove a name; a missing one is ignored."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return


def identity(path: Path) -> Identity | None:
    """Return device and inode of a path, not of the target of a link; None where it does not exist."""
    try:
        return _identity(path.lstat())
    except OSError:
        return None


def _identity(facts: os.stat_result | None) -> Identity | None:
    return None if facts is None else (facts.st_dev, facts.st_ino)


def _check(path: Path, facts: os.stat_result, setting: str) -> None:
    if facts.st_uid not in (os.getuid(), 0):
        raise BadAddress(f"the directory {path} belongs to another user: choose another {setting}")
    # Where the sticky bit is set, as in /tmp, other users can add names but cannot remove or rename those of this user.
    if facts.st_mode & _OTHERS_MAY_WRITE and not facts.st_mode & stat.S_ISVTX:
        raise BadAddress(f"other users may write to {path}: make it private (chmod 700) or choose another {setting}")
