"""Connections to the daemon are read in turns while the chunks of all come fast, and at once otherwise."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from car_client.errors import ConnectionLost
from car_http.daemon.connection import DaemonConnection, Ended, Event
from car_http.daemon.reading import FAST_BYTES_PER_S, WINDOW_S, Reading, Turns
from car_protocol.envelope import Notification, Result, encode_message
from car_protocol.methods import CHUNK
from tests.client.samples import ANSWER

FAST_BYTES = round(WINDOW_S * FAST_BYTES_PER_S) * 2  # more than those of a window


class Source:
    """The transport of a connection whose other end is `daemon`; `reading` is whether the loop reads it."""

    def __init__(self) -> None:
        self.daemon, self._socket = socket.socketpair()
        self._socket.setblocking(False)
        self.reading = True
        self.closing = False

    def get_extra_info(self, name: str) -> socket.socket:
        """As a transport."""
        assert name == "socket"
        return self._socket

    def is_closing(self) -> bool:
        """As a transport."""
        return self.closing

    def pause_reading(self) -> None:
        """As a transport."""
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        """As a transport."""
        assert not self.closing
        self.reading = True

    def abort(self) -> None:
        """As a transport."""
        self.closing = True

    def write(self, data: bytes) -> None:
        """As a transport."""
        self._socket.send(data)

    def close(self) -> None:
        """Close both ends."""
        self.daemon.close()
        self._socket.close()


class Clock:
    """Seconds that pass where a test advances them."""

    now = 50.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


@pytest.fixture
def sources() -> Iterator[list[Any]]:
    sources = [Source() for _ in range(3)]
    yield sources
    for source in sources:
        source.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fast(source: Any, receive: Callable[[bytes], None], clock: Clock, turns: Turns) -> Reading:
    """Return the reading of a connection after a window of fast chunks."""
    reading = Reading(turns, receive, clock)
    reading.begin(source)
    reading.count(FAST_BYTES)
    clock.now += WINDOW_S * 1.1
    reading.count(FAST_BYTES)
    assert not source.reading
    return reading


def test_a_stream_is_read_in_turns_while_it_is_fast_for_long_but_not_in_a_burst(
    sources: list[Any], clock: Clock
) -> None:
    reading = Reading(Mock(), Mock(), clock)
    reading.begin(sources[0])

    def read_at_once(chunks: int, gap_s: float) -> bool:
        for _ in range(chunks):
            clock.now += gap_s
            reading.count(100)
        return bool(sources[0].reading)

    assert read_at_once(1, 1.0)  # the first chunk
    assert read_at_once(4, 0.0001)  # a burst
    assert read_at_once(20, 0.012)
    assert not read_at_once(100, 0.001)
    assert read_at_once(1, 1.0)
    assert read_at_once(20, 0.012)
    assert not read_at_once(100, 0.01)


async def test_a_turn_reads_all_connections_and_the_loop_reads_one_that_ended(sources: list[Any], clock: Clock) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()
    turns = Turns()
    readings = [fast(source, came.put_nowait, clock, turns) for source in sources]
    for source in sources:
        source.daemon.send(b"early")
    assert came.empty()
    assert [await came.get() for _ in sources] == [b"early"] * 3
    sources[0].daemon.close()
    sources[1].closing = True
    sources[2].daemon.send(b"late")
    assert await came.get() == b"late"
    assert [source.reading for source in sources] == [True, False, False]  # the loop closes the second one
    readings[2].at_once()


async def test_a_connection_that_leaves_in_a_turn_is_not_read_in_it(sources: list[Any], clock: Clock) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()
    turns = Turns()
    readings: list[Reading] = []

    def first(data: bytes) -> None:
        readings[1].at_once()
        came.put_nowait(data)

    readings += [
        fast(source, receive, clock, turns)
        for source, receive in zip(sources, [first, *[came.put_nowait] * 2], strict=True)
    ]
    for number, source in enumerate(sources):
        source.daemon.send(b"%d" % number)
    assert [await came.get(), await came.get()] == [b"0", b"2"]
    assert sources[1].reading
    for reading in readings:
        reading.at_once()


async def test_a_failure_ends_its_connection_and_the_others_are_read(sources: list[Any], clock: Clock) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    came: asyncio.Queue[bytes] = asyncio.Queue()
    turns = Turns()

    def fail(data: bytes) -> None:
        raise ZeroDivisionError(data)

    readings = [
        fast(source, receive, clock, turns)
        for source, receive in zip(sources, [fail, *[came.put_nowait] * 2], strict=True)
    ]
    for source in sources:
        source.daemon.send(b"text")
    assert [await came.get(), await came.get()] == [b"text"] * 2
    assert [source.closing for source in sources] == [True, False, False]
    assert [type(failure["exception"]) for failure in failures] == [ZeroDivisionError]
    for reading in readings:
        reading.at_once()


async def test_the_loop_reads_on_where_no_descriptor_is_left(
    sources: list[Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "dup", Mock(side_effect=OSError("too many open files")))
    reading = Reading(Turns(), Mock(), clock)
    reading.begin(sources[0])
    reading.count(FAST_BYTES)
    clock.now += WINDOW_S * 1.1
    reading.count(FAST_BYTES)
    assert sources[0].reading


async def test_a_connection_without_chunks_leaves_the_turns_and_its_descriptor_is_closed(
    sources: list[Any], clock: Clock
) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()
    turns = Turns()
    descriptors = len(os.listdir("/dev/fd"))
    readings = [fast(source, came.put_nowait, clock, turns) for source in sources]
    assert len(os.listdir("/dev/fd")) == descriptors + len(sources)
    sources[2].daemon.send(b"last")
    await came.get()
    assert [source.reading for source in sources] == [True, True, False]
    assert len(os.listdir("/dev/fd")) == descriptors + 1
    readings[0].count(100)
    assert sources[0].reading
    readings[2].at_once()


def chunk(seq: int) -> bytes:
    """Return the frame of a chunk."""
    return encode_message(Notification(CHUNK, {"id": 1, "seq": seq, "text": "a"}))


def write_fast(connection: DaemonConnection, source: Source) -> None:
    """Receive chunks until the connection is read in turns."""
    for _ in range(1_000_000):
        if not source.reading:
            return
        connection.data_received(chunk(1))
    raise AssertionError("a million chunks are read at once")


async def test_chunks_that_were_written_at_once_are_counted_and_others_end_the_turns(sources: list[Any]) -> None:
    source = sources[0]
    connection = DaemonConnection(lambda _: None, Turns())
    connection.connection_made(source)
    connection.on_events(lambda events: not isinstance(events[0], Ended))
    connection.data_received(chunk(0) * 999)  # no task waits
    await connection.events()
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    write_fast(connection, source)
    source.daemon.send(encode_message(Result(1, ANSWER)))
    (last,) = await waiting
    assert isinstance(last, Ended)
    assert source.reading


async def fast_connection(source: Any) -> tuple[DaemonConnection, asyncio.Task[list[Event]]]:
    """Return a connection that is read in turns, and the task that waits for its events."""
    connection = DaemonConnection(lambda _: None, Turns())
    connection.connection_made(source)
    connection.on_events(lambda _: True)
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    write_fast(connection, source)
    return connection, waiting


async def test_a_connection_that_was_lost_leaves_the_turns(sources: list[Any]) -> None:
    descriptors = len(os.listdir("/dev/fd"))
    connection, waiting = await fast_connection(sources[0])
    sources[0].closing = True
    connection.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await waiting
    assert len(os.listdir("/dev/fd")) == descriptors


async def test_the_first_chunks_of_the_next_call_do_not_wait(sources: list[Any]) -> None:
    connection, waiting = await fast_connection(sources[0])
    connection.begin("infer_stream", {})
    assert sources[0].reading
    connection.data_received(chunk(0))
    assert sources[0].reading
    waiting.cancel()
