"""Lines of a process that may mean harm reach a log printable, under its name, and bounded in length and rate."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from car_base.ipc.spawning import LineRelay

BURST, RATE = 16 * 1024, 256


class Loop:
    """An event loop whose time a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reader: Callable[[], None] | None = None
        self.later: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def add_reader(self, _: int, callback: Callable[[], None]) -> None:
        self.reader = callback

    def remove_reader(self, _: int) -> None:
        self.reader = None

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.later = (self.now + delay, callback)
        return cast(asyncio.TimerHandle, self)

    def cancel(self) -> None:
        self.later = None

    def pass_time(self) -> None:
        """Let time pass to the next call."""
        assert self.later is not None
        (self.now, callback), self.later = self.later, None
        callback()


class Relayed:
    """A relay of a pipe, what it wrote, and the loop that it runs on."""

    def __init__(self) -> None:
        reading, self.pipe = os.pipe()
        self.loop = Loop()
        self.lines: list[str] = []
        self.relay = LineRelay(reading, "engine 7", self.lines.append, cast(asyncio.AbstractEventLoop, self.loop))

    def say(self, data: bytes) -> None:
        """Have the process write."""
        os.write(self.pipe, data)
        self.read()

    def read(self) -> None:
        """Read as long as the relay does."""
        for _ in range(1000):
            if self.loop.reader is not None:
                self.loop.reader()


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    one = Relayed()
    yield one
    one.relay.end()
    os.close(one.pipe)


def test_each_line_stands_under_the_name_of_its_process(relayed: Relayed) -> None:
    relayed.say(b"one\ntw")
    relayed.say(b"o\nthr")
    assert relayed.lines == ["engine 7: one\n", "engine 7: two\n"]
    relayed.relay.end()
    assert relayed.lines[2:] == ["engine 7: thr\n"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        (b"a\rcard: forged\x0b\x0c\x85", r"a\rcard: forged\x0b\x0c\x85"),
        ("a\u2028b\u202ec\u009b".encode(), r"a\u2028b\u202ec\x9b"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("Größe: 2 µm".encode(), "Größe: 2 µm"),
    ],
)
def test_nothing_reaches_a_log_that_a_terminal_acts_on_or_that_looks_like_another_line(
    relayed: Relayed, said: bytes, shown: str
) -> None:
    relayed.say(said + b"\n")
    assert relayed.lines == [f"engine 7: {shown}\n"]


def test_a_line_without_an_end_is_passed_on_in_pieces(relayed: Relayed) -> None:
    relayed.say(b"a" * 5000)
    assert len(relayed.lines) == 4
    assert max(map(len, relayed.lines)) < 2000


@pytest.mark.parametrize("said", [b"\n", b"a\n", b"\x00" * 100 + b"\n", b"\x00"])
def test_a_process_that_writes_without_end_adds_a_burst_and_then_little_a_second(relayed: Relayed, said: bytes) -> None:
    os.set_blocking(relayed.pipe, False)
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            os.write(relayed.pipe, said * (60_000 // len(said)))
        relayed.read()
        relayed.loop.pass_time()
        relayed.read()
    written = sum(map(len, relayed.lines))
    most_of_a_turn = 512 * len("engine 7: \\x00\n")
    assert written <= BURST + RATE * relayed.loop.now + most_of_a_turn
    assert written >= BURST


def test_the_end_of_a_process_does_not_wait_for_what_it_wrote_too_fast(relayed: Relayed) -> None:
    relayed.say(b"a line\n" * 9000)
    before = sum(map(len, relayed.lines))
    relayed.relay.end()
    assert sum(map(len, relayed.lines)) == before
    assert relayed.loop.later is None
    assert relayed.loop.reader is None


def test_what_a_process_wrote_right_before_its_end_is_passed_on(relayed: Relayed) -> None:
    os.write(relayed.pipe, b"Fatal Python error: Aborted\n")
    relayed.relay.end()
    assert relayed.lines == ["engine 7: Fatal Python error: Aborted\n"]
