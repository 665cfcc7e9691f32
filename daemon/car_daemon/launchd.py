"""Sockets that launchd keeps for its agents, through the one C function that hands them out."""

import ctypes
import errno
import os
from typing import Any

from car_daemon.directory import BadAddress

# What launchd answers to a process that it did not start, or whose property list names no such socket.
_NOT_ACTIVATED = (errno.ENOENT, errno.ESRCH)


def system_library() -> Any:
    """Return the C library, which has the function on macOS."""
    return ctypes.CDLL(None)


def descriptors_named(name: str, library: Any) -> list[int]:
    """Return the descriptors that launchd keeps under a name for this process; none where it did not start it."""
    descriptors = ctypes.POINTER(ctypes.c_int)()
    count = ctypes.c_size_t()
    code = library.launch_activate_socket(name.encode(), ctypes.pointer(descriptors), ctypes.pointer(count))
    if code in _NOT_ACTIVATED:
        return []
    if code:
        raise BadAddress(f"launchd gives no socket named {name}: {os.strerror(code)}")
    try:
        return descriptors[: count.value]
    finally:
        library.free(descriptors)
