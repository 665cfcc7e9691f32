"""What is said is passed on, and who says it never waits."""

import os
import socket
import time
from pathlib import Path

from car_daemon.log_pipe import LogPipe

LINE = b"a line of a log\n"


def end(pipe: LogPipe) -> None:
    """Have everything passed on."""
    pipe.end()
    pipe.join(10)
    assert not pipe._thread.is_alive()


def test_what_is_written_is_passed_on_to_its_end() -> None:
    reading, writing = os.pipe()
    pipe = LogPipe(writing)
    for _ in range(100):
        pipe.write(LINE)
    end(pipe)
    assert os.read(reading, 1 << 16) == LINE * 100
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_where_nobody_reads_lines_are_lost_and_nobody_waits() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = LogPipe(theirs.fileno())
        started = time.monotonic()
        for _ in range(100_000):
            pipe.write(LINE)
        assert time.monotonic() - started < 5
        # Who reads again hears what fitted, in whole lines.
        heard = ours.recv(1 << 16)
        assert heard.startswith(LINE * 10)


def test_nothing_is_lost_where_somebody_reads_however_busy_the_writer_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        pipe = LogPipe(log.fileno())
        for number in range(5000):
            # Without a rest: the thread that passes it on gets no turn of its own accord.
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
