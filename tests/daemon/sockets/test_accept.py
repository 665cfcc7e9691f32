"""Accepting connections, also where descriptors run out."""

import asyncio
import errno
import resource
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from car_daemon.sockets.peer import Acceptor
from tests.daemon.captured_log import capture_logs
from tests.daemon.conftest import Run
from tests.pace import HANG_S

PAUSE_S = 0.03


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket to connect to."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)
        listener.setblocking(False)
        yield listener


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


class Taken:
    """Keeps what was accepted; `reached` has an event for every number of them."""

    def __init__(self) -> None:
        self.all: list[socket.socket] = []
        self.reached: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def __call__(self, connection: socket.socket) -> None:
        self.all.append(connection)
        self.reached[len(self.all)].set()


def close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


def test_every_connection_is_passed_on_non_blocking(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        taken = Taken()
        with listening(tmp_path / "s") as listener:
            acceptor = Acceptor(taken)
            clients = [connect(tmp_path / "s") for _ in range(100)]
            acceptor.start(listener)
            await taken.reached[100].wait()
            assert not any(connection.getblocking() for connection in taken.all)
            acceptor.stop()
            close([*clients, *taken.all])

    run(scenario())


def test_connections_that_find_no_descriptor_wait_until_there_is_one(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        taken = Taken()
        with listening(tmp_path / "s") as listener:
            clients = [connect(tmp_path / "s") for _ in range(20)]
            acceptor = Acceptor(taken, pause_s=PAUSE_S)
            acceptor.start(listener)
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = max(each.fileno() for each in clients) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + 5, before[1]))
            try:
                await taken.reached[5].wait()
                assert not taken.reached[20].is_set()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            await asyncio.wait_for(taken.reached[20].wait(), HANG_S)
            acceptor.stop()
            close([*clients, *taken.all])

    run(scenario())


def test_a_new_listener_takes_the_place_of_the_one_before(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        taken = Taken()
        with listening(tmp_path / "one") as one, listening(tmp_path / "other") as other:
            acceptor = Acceptor(taken)
            acceptor.start(one)
            acceptor.start(other)
            clients = [connect(tmp_path / "one"), connect(tmp_path / "other")]
            await taken.reached[1].wait()
            assert taken.all[0].getsockname() == str(tmp_path / "other")
            acceptor.stop()
            acceptor.stop()
            close([*clients, *taken.all])

    run(scenario())


def test_a_lack_of_descriptors_is_logged_once_and_nothing_is_accepted_after_the_stop(run: Run, tmp_path: Path) -> None:
    class Exhausted(socket.socket):
        def __init__(self) -> None:
            super().__init__(socket.AF_UNIX)
            self.attempted: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
            self.times = 0

        def accept(self) -> tuple[socket.socket, object]:
            self.times += 1
            self.attempted[self.times].set()
            raise OSError(errno.EMFILE, "")

    async def scenario() -> None:
        with Exhausted() as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            listener.setblocking(False)
            acceptor = Acceptor(lambda connection: None, pause_s=PAUSE_S)
            acceptor.start(listener)
            with connect(tmp_path / "s"), capture_logs() as logs:
                await listener.attempted[2].wait()
                acceptor.stop()
                before = listener.times
                await asyncio.sleep(2 * PAUSE_S)
                assert listener.times == before
        assert [entry["event"] for entry in logs] == ["accept.paused"]

    run(scenario())
