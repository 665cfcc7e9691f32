"""A lock for programs that change a file: a file beside it, while the lock is held, which only its user may open."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_of(path: Path) -> Iterator[None]:
    """Hold the lock of a file; raises OSError. Any user could hold the lock of a folder that all may read."""
    place = path.with_name(f"{path.name}.lock")
    descriptor = _locked(place)
    while not _is_at(descriptor, place):  # whoever held the lock before removed the file
        os.close(descriptor)
        descriptor = _locked(place)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(place: Path) -> int:
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_at(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), place.lstat())
    except FileNotFoundError:
        return False
