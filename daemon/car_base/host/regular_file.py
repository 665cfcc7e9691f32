"""Regular files, opened without blocking: a FIFO or a device in place of one may never return a byte."""

import errno
import os
import stat
from pathlib import Path
from typing import IO

MOST_BYTES = 1024 * 1024


class NotRegular(OSError):
    """The path leads to something else than a regular file."""


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a regular file; raises OSError, and NotRegular for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "it is not a regular file")
    return descriptor


def read_regular(path: Path) -> bytes:
    """Return the content of a file of at most 1 MiB, b"" for the null device; raises OSError, also for a longer one."""
    try:
        descriptor = open_regular(path)
    except NotRegular:
        if path.samefile(os.devnull):
            return b""
        raise
    with open(descriptor, "rb") as file:
        return read_bounded(file)


def read_bounded(file: IO[bytes]) -> bytes:
    """Return the content of an open file of at most 1 MiB; raises OSError for a longer one."""
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is longer than {MOST_BYTES} bytes")
    return data
