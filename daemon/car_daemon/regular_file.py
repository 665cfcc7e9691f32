"""Small files that are read at once."""

import errno
import os
import stat
from pathlib import Path

_MOST_BYTES = 1024 * 1024


def read_regular(path: Path) -> bytes:
    """Return what a file holds; raises OSError for what is none, without waiting for it, and for more than 1 MiB."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISCHR(kind):
            raise OSError(errno.EINVAL, "it is no file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, "it is too large")
    return data
