"""Folders: one that only this user can write to, whatever the umask; and where measurements and records are kept."""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from car_base.host.files import read_bounded


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of measurements: the service manager's, else the user's."""
    if given := env.get("CACHE_DIRECTORY"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "car"
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "car"


def state_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of records: the service manager's, else the user's."""
    if given := env.get("STATE_DIRECTORY"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "car"
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "car"


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_OVERWRITE = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK


class Entry(NamedTuple):
    """A regular file of the folder: its size in bytes, and its time of change in seconds."""

    name: str
    size: int
    modified_s: float


class PrivateFolder:
    """A folder as a context, made with its parents if it is missing; raises OSError if it is another user's.

    Neither the folder nor a file in it may be a link. A folder of this user that others may write to is closed to them;
    files that others may have planted meanwhile are not read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        missing = [folder for folder in (self._path, *self._path.parents) if not folder.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(_FOLDER_MODE)
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            facts = os.fstat(self._descriptor)
            check_owner(facts)
            if facts.st_mode & _OTHERS_WRITE:
                os.fchmod(self._descriptor, _FOLDER_MODE)
        except OSError:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def open(self, name: str) -> BufferedReader:
        """Open a file of this user that others cannot write to; raises OSError, also for any other."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = open(os.open(name, flags, dir_fd=self._descriptor), "rb")  # noqa: SIM115 - for the caller
        try:
            _check_file(os.fstat(file.fileno()))
        except OSError:
            file.close()
            raise
        return file

    def read(self, name: str) -> bytes:
        """Return the content of such a file of at most 1 MiB; raises OSError."""
        with self.open(name) as file:
            return read_bounded(file)

    @property
    def entries(self) -> list[Entry]:
        """The regular files, the oldest first; raises OSError."""
        found = []
        for name in os.listdir(self._descriptor):
            with contextlib.suppress(FileNotFoundError):  # another process may remove files
                facts = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    found.append(Entry(name, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda entry: entry.modified_s)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def discard(self, name: str) -> None:
        """Remove a file, if it is there, and free its room also while a process has it open; raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            facts = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
                os.close(os.open(name, _OVERWRITE, dir_fd=self._descriptor))
            os.unlink(name, dir_fd=self._descriptor)

    @contextmanager
    def draft(self, name: str, size: int) -> Iterator[int]:
        """Make a file that counts as `size` bytes at once, and yield its descriptor; an error discards it."""
        descriptor = os.open(name, _MAKE, _FILE_MODE, dir_fd=self._descriptor)
        try:
            os.ftruncate(descriptor, size)
            yield descriptor
        except BaseException:
            self.discard(name)
            raise
        finally:
            os.close(descriptor)

    def rename(self, name: str, new: str) -> None:
        """Put a file in place of another in one step; raises OSError."""
        os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def make(self, name: str) -> None:
        """Make an empty file unless this user has one that others cannot write to; raises OSError."""
        try:
            self.open(name).close()
        except OSError:
            self.remove(name)
            os.close(os.open(name, _MAKE, _FILE_MODE, dir_fd=self._descriptor))

    def overwrite(self, name: str, data: bytes) -> None:
        """Write to a file that is there, in place of its content; raises OSError."""
        with open(os.open(name, _OVERWRITE, dir_fd=self._descriptor), "wb") as file:
            file.write(data)


def _check_file(facts: os.stat_result) -> None:
    check_owner(facts)
    if facts.st_mode & _OTHERS_WRITE or not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EPERM, "others can write to the file")


def check_owner(facts: os.stat_result) -> None:
    """Raise OSError for a file or folder that is another user's."""
    if facts.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")
