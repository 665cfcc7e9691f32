"""The end of a process that is not a child of this one."""

import os
import select
import sys


def wait_for_end(pid: int, seconds: float) -> bool:
    """Return whether a process ends within a time; True where there is none."""
    return _by_descriptor(pid, seconds) if sys.platform == "linux" else _by_queue(pid, seconds)


def _by_descriptor(pid: int, seconds: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _by_queue(pid: int, seconds: float) -> bool:
    """As BSD's and macOS' kernels report it."""
    queue = select.kqueue()  # type: ignore[attr-defined]  # not on Linux
    try:
        flags = select.KQ_EV_ADD | select.KQ_EV_ONESHOT  # type: ignore[attr-defined]  # likewise
        event = select.kevent(pid, select.KQ_FILTER_PROC, flags, select.KQ_NOTE_EXIT)  # type: ignore[attr-defined]
        return bool(queue.control([event], 1, seconds))
    except ProcessLookupError:
        return True
    finally:
        queue.close()
