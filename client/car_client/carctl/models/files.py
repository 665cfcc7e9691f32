"""Files of other programs, which come and go."""

import stat
from pathlib import Path


def size_of(path: Path) -> int | None:
    """Return the bytes of a regular file; None for anything else, as a file out of reach."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
