"""The identity of a file's content, without reading all of it."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from car_daemon.host.regular_file import open_regular

# Of each end: the head has a model's metadata, and a file that is written again ends differently.
_HASHED_BYTES = 16 * 1024


class FileIdentity(NamedTuple):
    """A file's place on its disk, its size and time of change, and a hash of its head and tail."""

    device: int
    inode: int
    size: int
    modified_ns: int
    digest: bytes

    @property
    def place(self) -> tuple[int, int]:
        """The file itself, whatever its content."""
        return self.device, self.inode


def identify(path: Path) -> FileIdentity | None:
    """Return the identity of a regular file; None where it cannot be read."""
    try:
        with open(open_regular(path), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            digest = hashlib.blake2b(os.pread(file.fileno(), _HASHED_BYTES, 0), digest_size=16)
            digest.update(os.pread(file.fileno(), _HASHED_BYTES, max(0, found.st_size - _HASHED_BYTES)))
    except (OSError, ValueError):
        return None
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, digest.digest())
