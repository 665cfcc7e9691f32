"""Small files that are read at once."""

import errno
import os
import stat
from pathlib import Path

_MOST_BYTES = 1024 * 1024


def read_regular(path: Path) -> bytes:
    """Return what a file or the null device holds; raises OSError for anything else, and for more than 1 MiB."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) and facts.st_rdev != os.stat(os.devnull).st_rdev:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    with open(descriptor, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, "it is too large")
    return data
