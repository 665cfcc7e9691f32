"""The end of the placer with its daemon, whatever a call of Ray does meanwhile."""

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
# The daemon kills a placer a second after it closed the link.
_TAKE_BACK_S = 1.0


def end_with(daemon: socket.socket, end: Callable[[int], object] = os._exit) -> None:
    """Have the process end once its daemon closes the socket, or dies; seats of unanswered orders end by themselves.

    A thread waits for the socket, because the event loop may be in a call of Ray that blocks. On Linux the kernel ends
    the process at the daemon's death, because such a call may stop all threads.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    poll = select.poll()
    # A descriptor of its own, because the event loop closes the other one. A hangup is reported whatever is asked for.
    poll.register(os.dup(daemon.fileno()), 0)
    if poll.poll(0):
        # It died before the kernel was told.
        end(0)
    threading.Thread(target=_watch, args=(poll, end), name="hangup", daemon=True).start()


def _watch(poll: "select.poll", end: Callable[[int], object]) -> None:
    poll.poll()
    # For the orders under way to be taken back.
    time.sleep(_TAKE_BACK_S)
    end(0)
