"""What a blocking connection sends, also where a signal comes in the middle of it."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, main_thread
from typing import NoReturn

import pytest

from car_client.errors import DaemonUnavailable
from car_client.wire import Wire

# More than a socket takes in without being read.
LONG = b"a" * 4_000_000 + b"\n"


@contextmanager
def on_signal(act: Callable[[], object]) -> Iterator[None]:
    """Have something done whenever the signal comes."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def read_all(theirs: socket.socket, read: bytearray) -> None:
    """Send the signal in the middle of the long frame, then read until nothing comes any more."""
    while LONG[:1000] not in read:
        read += theirs.recv(1000)
    # Of another thread than the one that sends it would interrupt nothing.
    signal.pthread_kill(main_thread().ident or 0, signal.SIGUSR1)
    while data := theirs.recv(1 << 20):
        read += data


@contextmanager
def interrupted(act: Callable[[Wire], object]) -> Iterator[tuple[Wire, bytearray]]:
    """Have something done in the middle of the long frame; what was sent is whole once the block is left."""
    ours, theirs = socket.socketpair()
    read = bytearray()
    reader = Thread(target=read_all, args=(theirs, read))
    with theirs:
        wire = Wire(ours)
        with on_signal(lambda: act(wire)):
            reader.start()
            yield wire, read
            wire.close()
            reader.join()


def test_what_a_signal_sends_follows_the_frame_that_is_being_sent() -> None:
    with interrupted(lambda wire: wire.send(b"cancel\n")) as (wire, read):
        wire.send(LONG)
        wire.send(b"more\n")
    assert read.split(b"\n")[1:] == [LONG[:-1], b"cancel", b"more", b""]


def test_nothing_follows_a_part_of_a_frame() -> None:
    def interrupt(_: Wire) -> NoReturn:
        raise KeyboardInterrupt

    with interrupted(interrupt) as (wire, read):
        with pytest.raises(KeyboardInterrupt):
            wire.send(LONG)
        assert not wire.open
    assert read.count(b"\n") == 1


def test_an_interrupt_while_answers_are_taken_in_ends_the_connection_that_lost_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_data: bytes) -> NoReturn:
        raise KeyboardInterrupt

    ours, theirs = socket.socketpair()
    with theirs:
        wire = Wire(ours)
        exchange = wire.session.begin("models/list", {})
        monkeypatch.setattr(wire.session, "receive", interrupt)
        theirs.send(b"{}\n")
        with pytest.raises(KeyboardInterrupt):
            wire.wait(exchange)
        assert not wire.open
        with pytest.raises(DaemonUnavailable):
            exchange.read(object)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_between_two_frames_leaves_none_behind(moment: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        wire = Wire(ours)
        sending = Interrupted(ours, wire, moment)
        wire._socket = sending  # type: ignore[assignment]  # as much of a socket as sending needs
        wire.send(b"question\n")
        wire.send(b"next\n")
        assert sending.sent == [b"question\n", b"cancel\n", b"next\n"]
        wire.close()


class Interrupted:
    """A socket beside whose first frame a signal sends another one."""

    def __init__(self, real: socket.socket, wire: Wire, moment: str) -> None:
        self._real = real
        self._wire = wire
        self._moment = moment
        self.sent: list[bytes] = []

    def sendall(self, frame: bytes) -> None:
        first = not self.sent
        if first and self._moment == "before":
            self._wire.send(b"cancel\n")
        self.sent.append(frame)
        if first and self._moment == "after":
            self._wire.send(b"cancel\n")

    def close(self) -> None:
        self._real.close()
