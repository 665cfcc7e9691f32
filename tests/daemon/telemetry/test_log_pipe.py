"""Lines are copied to their end, and writers never block."""

import os
import socket
from pathlib import Path

from car_daemon.telemetry.logs import LogPipe
from tests.pace import HANG_S

LINE = b"a line of a log\n"


def end(pipe: LogPipe) -> None:
    """Wait until all lines are copied."""
    pipe.end()
    pipe.join(HANG_S)
    assert not pipe._thread.is_alive()


def test_lines_are_copied_to_their_end() -> None:
    reading, writing = os.pipe()
    pipe = LogPipe(writing)
    for _ in range(100):
        pipe.write(LINE)
    end(pipe)
    assert os.read(reading, 1 << 16) == LINE * 100
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_without_a_reader_lines_are_dropped_and_writers_do_not_block() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = LogPipe(theirs.fileno())
        # With 20 ms for each line this would last half an hour.
        for _ in range(100_000):
            pipe.write(LINE)
        # A reader that comes later gets the lines that fitted, whole.
        heard = ours.recv(1 << 16)
        assert heard.startswith(LINE * 10)


def test_no_line_is_lost_to_a_reader_however_busy_the_writer_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        pipe = LogPipe(log.fileno())
        for number in range(5000):
            # Without a rest: the thread that copies gets no turn of its own accord.
            pipe.write(b"%d %s" % (number, LINE))
        end(pipe)
    assert len((tmp_path / "log").read_bytes().splitlines()) == 5000


def test_a_line_that_is_too_long_is_cut_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        pipe = LogPipe(log.fileno())
        for line in (b"a" * 100_000 + b"\n", LINE):
            pipe.write(line)
        end(pipe)
    first, second = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    assert (len(first), second) == (4096, LINE)


def test_a_reader_that_is_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    pipe = LogPipe(writing)
    for _ in range(3):
        pipe.write(LINE)
    end(pipe)
    os.close(writing)
