"""The frames of a blocking connection, also where a signal comes in the middle of one."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, main_thread
from typing import NoReturn

import pytest

from car_client.errors import DaemonUnavailable
from car_client.transport.blocking_connection import BlockingConnection
from tests.pace import HANG_S

# More than a socket takes in without being read.
LONG = b"a" * 4_000_000 + b"\n"


@contextmanager
def on_signal(act: Callable[[], object]) -> Iterator[Event]:
    """Act whenever the signal comes; yields the event that is set when it has come."""
    came = Event()

    def handle(_number: int, _frame: object) -> None:
        came.set()
        act()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGUSR1, before)


def read_all(theirs: socket.socket, read: bytearray, came: Event) -> None:
    """Send the signal in the middle of the long frame; once it has come, read until nothing comes any more."""
    while LONG[:1000] not in read:
        read += theirs.recv(1000)
    # Of another thread than the one that sends it would interrupt nothing.
    signal.pthread_kill(main_thread().ident or 0, signal.SIGUSR1)
    # A sender looks for signals when it has to wait: while somebody reads it may send the whole frame before.
    assert came.wait(HANG_S)
    while data := theirs.recv(1 << 20):
        read += data


@contextmanager
def interrupted(act: Callable[[BlockingConnection], object]) -> Iterator[tuple[BlockingConnection, bytearray]]:
    """Act in the middle of the long frame; all sent bytes have been read once the block is left."""
    ours, theirs = socket.socketpair()
    read = bytearray()
    with theirs:
        connection = BlockingConnection(ours)
        with on_signal(lambda: act(connection)) as came:
            reader = Thread(target=read_all, args=(theirs, read, came))
            reader.start()
            yield connection, read
            connection.close()
            reader.join()


def test_what_a_signal_sends_follows_the_frame_that_is_being_sent() -> None:
    with interrupted(lambda connection: connection.send(b"cancel\n")) as (connection, read):
        connection.send(LONG)
        connection.send(b"more\n")
    assert read.split(b"\n")[1:] == [LONG[:-1], b"cancel", b"more", b""]


def test_nothing_follows_a_part_of_a_frame() -> None:
    def interrupt(_: BlockingConnection) -> NoReturn:
        raise KeyboardInterrupt

    with interrupted(interrupt) as (connection, read):
        with pytest.raises(KeyboardInterrupt):
            connection.send(LONG)
        assert not connection.open
    assert read.count(b"\n") == 1


def test_an_interrupt_while_answers_are_taken_in_ends_the_connection_that_lost_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_data: bytes) -> NoReturn:
        raise KeyboardInterrupt

    ours, theirs = socket.socketpair()
    with theirs:
        connection = BlockingConnection(ours)
        call = connection.session.begin("models/list", {})
        monkeypatch.setattr(connection.session, "receive", interrupt)
        theirs.send(b"{}\n")
        with pytest.raises(KeyboardInterrupt):
            connection.wait(call)
        assert not connection.open
        with pytest.raises(DaemonUnavailable):
            call.read(object)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_between_two_frames_leaves_none_behind(moment: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = BlockingConnection(ours)
        sending = Interrupted(ours, connection, moment)
        connection._socket = sending  # type: ignore[assignment]  # as much of a socket as sending needs
        connection.send(b"question\n")
        connection.send(b"next\n")
        assert sending.sent == [b"question\n", b"cancel\n", b"next\n"]
        connection.close()


class Interrupted:
    """A socket beside whose first frame a signal sends another one."""

    def __init__(self, real: socket.socket, connection: BlockingConnection, moment: str) -> None:
        self._real = real
        self._connection = connection
        self._moment = moment
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> int:
        first = not self.sent
        if first and self._moment == "before":
            self._connection.send(b"cancel\n")
        self.sent.append(bytes(frame))
        if first and self._moment == "after":
            self._connection.send(b"cancel\n")
        return len(frame)

    def close(self) -> None:
        self._real.close()
