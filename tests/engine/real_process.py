"""A real engine process on the built-in model, at the other end of a socket."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from car_base.guide import PATH
from car_base.ipc.frames import Load
from tests.pace import HANG_S

PATIENCE_S = HANG_S
LOAD = Load(
    path=str(PATH),
    context_tokens=256,
    sequences=1,
    policy="config",
    max_itl_ms=150,
    reserve_bytes=0,
    saved_bytes=0,
    step_target_ms=50,
    curves=None,
    threads=2,
    gpu_layers=0,
    speculative=False,
    margin_bytes=None,
)


@contextmanager
def started(*python: str, arguments: tuple[str, ...] = ()) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """Run Python on a module or a text, with the number of its socket and `arguments`; yields the daemon's end."""
    ours, theirs = socket.socketpair()
    with theirs:
        engine = subprocess.Popen(
            [sys.executable, *python, str(theirs.fileno()), *arguments],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    # The socket closes first, so that the engine ends also where a test fails.
    with engine, ours:
        ours.settimeout(PATIENCE_S)
        yield ours, engine
