"""The process that starts children by forking itself.

An engine cannot start processes once it is confined, and a process with the threads of a GPU's driver must not fork. So
the engine forks this process first. It has no threads and no model, and it reads orders of four bytes: 0 to start a
child, which is answered with the child's number and its socket, else the number of a child to end.
"""

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from car_base.ipc.codec import encode_frame
from car_engine.child.frames import Answer, ChildSettings, Job, decode_job, decode_settings
from car_engine.child.limits import limit_cpu, limit_memory
from car_engine.child.link import LinkClosed, exactly, receive

ORDER_BYTES = 4
START = 0
_MOST_CHILDREN = 2
_FIRST_TO_END = "1000"

Work = Callable[[Job], Answer]


def fork_server(opened: Callable[[], tuple[Work, Callable[[], None]]], closed: Sequence[int]) -> socket.socket:
    """Fork the server of this process, which has no other threads yet; return the socket for its orders.

    `opened` is called in the server, and returns the work of a child and its confinement. `closed` are descriptors
    that the server must not keep.
    """
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    code = 1
    try:
        ours.close()
        for each in closed:
            os.close(each)
        work, confine = opened()
        with contextlib.suppress(LinkClosed, OSError):
            serve(theirs, work, confine)
        code = 0
    finally:
        os._exit(code)


def serve(orders: socket.socket, work: Work, confine: Callable[[], None]) -> None:
    """Follow orders until the engine ends; raises LinkClosed then, and OSError."""
    settings = decode_settings(receive(orders))
    # Objects that no collection touches stay in memory that all children share.
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    try:
        while True:
            number = int.from_bytes(exactly(orders, ORDER_BYTES), "little")
            if number in children:
                children.remove(number)
                _end(number)
            elif number == START and len(children) < _MOST_CHILDREN:
                children.add(_started(orders, work, confine, settings))
    finally:
        for number in children:
            _end(number)


def _end(number: int) -> None:
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


def _started(orders: socket.socket, work: Work, confine: Callable[[], None], settings: ChildSettings) -> int:
    engine, child = socket.socketpair()
    with engine, child:
        number = os.fork()
        if number:
            socket.send_fds(orders, [number.to_bytes(ORDER_BYTES, "little")], [engine.fileno()])
            return number
        code = 1
        try:
            orders.close()
            engine.close()
            _first_to_end()
            limit_memory()
            if settings.sandbox:
                confine()
            with contextlib.suppress(LinkClosed, OSError):
                _answer_jobs(child, work)
            code = 0
        finally:
            # Without a word about an exception, whose text may contain input.
            os._exit(code)


def _answer_jobs(link: socket.socket, work: Work) -> None:
    while True:
        body = receive(link)
        limit_cpu(len(body))
        link.sendall(encode_frame(work(decode_job(body))))


def _first_to_end() -> None:
    """Have the kernel end a child before its engine when memory runs out (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END)
