"""What is said is passed on, and who says it never waits."""

import os
import socket

from car_daemon.log_pipe import LogPipe

LINE = b"a line of a log\n"


def test_what_is_written_is_passed_on_to_its_end() -> None:
    reading, writing = os.pipe()
    pipe = LogPipe(writing)
    for _ in range(100):
        os.write(pipe.descriptor, LINE)
    pipe.close()
    assert os.read(reading, 1 << 16) == LINE * 100
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_where_nobody_reads_lines_are_lost_and_nobody_waits() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = LogPipe(theirs.fileno())
        lost = 0
        while lost < 1000:
            try:
                os.write(pipe.descriptor, LINE)
            except BlockingIOError:
                lost += 1
        # Who reads again hears what fitted, in whole lines.
        heard = ours.recv(1 << 16)
        assert heard.startswith(LINE * 10)


def test_a_reader_that_is_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    pipe = LogPipe(writing)
    for _ in range(3):
        os.write(pipe.descriptor, LINE)
    pipe.close()
    assert not pipe._thread.is_alive()
    os.close(writing)
