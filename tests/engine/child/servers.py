"""Fork servers of children: a real one, and one whose children are sockets in the hands of a test."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread

from car_engine.child.children import Children
from car_engine.child.fork_server import ORDER_BYTES, START
from car_engine.child.frames import ChildSettings
from car_engine.child.link import LinkClosed, exactly, receive
from tests.pace import HANG_S

# A real server with the work of an engine's children, or with that of a test.
SERVER = """
import socket, sys
from car_engine.child.fork_server import serve
from car_engine.child.link import LinkClosed
{work}
try:
    serve(socket.socket(fileno=int(sys.argv[1])), work, confine)
except LinkClosed:
    pass
"""
WORK = "from car_engine.child_server import _opened; work, confine = _opened()"


@contextmanager
def real_children(work: str = WORK, *, sandbox: bool = True) -> Iterator[Children]:
    """Run a real server, by default with the work of an engine's children."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", SERVER.format(work=work), str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    with server, ours:
        children = Children(ours)
        children.start(ChildSettings(sandbox=sandbox))
        yield children
        children.close()
        ours.close()
        assert server.wait(HANG_S) == 0


class FakeServer:
    """Hands out sockets as children, which the test answers; `ended` are the children that the engine ended."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self.started: Queue[socket.socket] = Queue()
        self.ended: list[int] = []
        self._count = 0
        self._thread = Thread(target=self._run)
        self._thread.start()

    def child(self) -> socket.socket:
        """Return the test's end of the next child."""
        link = self.started.get(timeout=HANG_S)
        link.settimeout(HANG_S)
        return link

    def join(self) -> None:
        """Wait until the engine has closed its end."""
        self._thread.join(HANG_S)

    def _run(self) -> None:
        try:
            receive(self._orders)  # the settings
            while True:
                number = int.from_bytes(exactly(self._orders, ORDER_BYTES), "little")
                if number != START:
                    self.ended.append(number)
                    continue
                self._count += 1
                ours, theirs = socket.socketpair()
                with theirs:
                    socket.send_fds(self._orders, [self._count.to_bytes(ORDER_BYTES, "little")], [theirs.fileno()])
                self.started.put(ours)
        except LinkClosed:
            self._orders.close()


@contextmanager
def fake_children() -> Iterator[tuple[Children, FakeServer]]:
    """Run children that the test answers."""
    ours, theirs = socket.socketpair()
    server = FakeServer(theirs)
    with ours:
        children = Children(ours)
        children.start(ChildSettings(sandbox=False))
        yield children, server
        children.close()
    server.join()
