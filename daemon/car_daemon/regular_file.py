"""Files that are opened without waiting for them: anything else at their place may never give a byte."""

import errno
import os
import stat
from pathlib import Path

_MOST_BYTES = 1024 * 1024


class NotRegular(OSError):
    """What is there is no regular file."""


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a regular file; raises OSError, and NotRegular for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "it is no file")
    return descriptor


def read_regular(path: Path) -> bytes:
    """Return what a small file holds, nothing for the null device; raises as `open_regular`, and for over 1 MiB."""
    try:
        descriptor = open_regular(path)
    except NotRegular:
        if path.samefile(os.devnull):
            return b""
        raise
    with open(descriptor, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, "it is too large")
    return data
