"""A file while it is downloaded: a hidden part beside its place, moved there once it is whole and checked."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from car_client.carctl.hub.remote import PullError, RemoteFile
from car_client.carctl.terminal.text import bytes_text

_SHA256_DIGITS, _GIT_DIGITS = 64, 40
_READ_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PartFile:
    """The bytes downloaded so far, kept for the next attempt unless their checksum is wrong."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size  # grows with every write

    @classmethod
    @contextmanager
    def opened(cls, remote: RemoteFile, place: Path) -> Iterator[Self]:
        """Yield the part of a file for a place, locked against other processes; raises PullError."""
        path = part_path(remote, place)
        with disk_faults(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _lock(path)
        try:
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def write(self, start: int, data: bytes) -> None:
        """Write bytes at their offset and drop everything behind it."""
        with disk_faults(self.path.parent):
            if start != self.size:
                self.truncate(start)
            view = memoryview(data)
            while view:
                written = os.pwrite(self._descriptor, view, self.size)
                self.size += written
                view = view[written:]

    def truncate(self, size: int) -> None:
        """Truncate the part."""
        os.ftruncate(self._descriptor, size)
        self.size = size

    def move_to(self, place: Path) -> None:
        """Move the whole file to its place atomically, and remove parts of other versions."""
        with disk_faults(place.parent):
            os.fsync(self._descriptor)
            self.path.replace(place)
            for other in parts_of(place):
                other.unlink()


def part_path(remote: RemoteFile, place: Path) -> Path:
    """Return the path of a file's part, which differs for every version of the file."""
    return place.with_name(f".{place.name}.{remote.etag[:16]}.part")


def parts_of(place: Path) -> list[Path]:
    """Return the unfinished parts of a file."""
    beginning = f".{place.name}."
    if not place.parent.is_dir():
        return []
    return [each for each in place.parent.iterdir() if each.name.startswith(beginning) and each.suffix == ".part"]


def is_whole(path: Path, remote: RemoteFile) -> bool:
    """Return whether a file has the hub's size and checksum; raises PullError."""
    kinds = {_SHA256_DIGITS: _sha256, _GIT_DIGITS: _git_hash}
    if len(remote.etag) not in kinds:
        raise PullError(f"the hub gives no checksum of {remote.file}, so it cannot be checked")
    with disk_faults(path.parent):
        return path.is_file() and path.stat().st_size == remote.size and kinds[len(remote.etag)](path) == remote.etag


@contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn OSError into PullError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        if error.errno not in _FULL:
            raise PullError(f"cannot write in {folder}: {reason}") from error
        advice = "the downloaded part is kept: make room, then run the same command again"
        raise PullError(f"the disk is full in {folder} ({reason}); {advice}") from error


def check_room(folder: Path, needed: int, free_bytes: Callable[[Path], int]) -> None:
    """Raise PullError if the bytes needed do not fit on the folder's disk."""
    existing = next(each for each in (folder, *folder.parents) if each.is_dir())
    free = free_bytes(existing)
    if needed > free:
        raise PullError(f"not enough room in {folder}: {bytes_text(needed)} needed, {bytes_text(free)} free")


def _lock(path: Path) -> int:
    """Return the locked descriptor of a part, opened again if another process has just moved it to its place."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise PullError(f"another carctl is downloading this file, wait for it: {path}") from None
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_hash(path: Path) -> str:
    """Return git's hash of a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
