"""Pieces of a stream that are written as they come, without waking a task up."""

import asyncio
from typing import Any

import pytest

from car_http.daemon.connection import DaemonConnection, Ended, Event
from car_http.protocol import ChunkedPieces
from car_protocol.envelope import Notification, Result, encode_message
from car_protocol.methods import CHUNK
from tests.client.samples import ANSWER


class Reader:
    """A transport and its flow control: what was written, and whether the client reads."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write_paused = False
        self.closing = False

    def is_closing(self) -> bool:
        """As a transport."""
        return self.closing

    def write(self, data: bytes) -> None:
        """As a transport."""
        self.written.append(data)


def pieces(reader: Any) -> ChunkedPieces:
    """Return the pieces of a body for a client."""
    return ChunkedPieces(reader, reader)


def chunk(seq: int) -> bytes:
    """Return the frame of a chunk."""
    return encode_message(Notification(CHUNK, {"id": 1, "seq": seq, "text": "a"}))


def test_an_empty_piece_does_not_end_the_body() -> None:
    reader = Reader()
    pieces(reader).write(b"")
    pieces(reader).write(b"x" * 16)
    assert reader.written == [b"10\r\n" + b"x" * 16 + b"\r\n"]


def test_pieces_wait_for_a_client_that_does_not_read_or_left() -> None:
    reader = Reader()
    assert pieces(reader).ready
    reader.write_paused = True
    assert not pieces(reader).ready
    reader.write_paused, reader.closing = False, True
    assert not pieces(reader).ready


async def test_events_that_are_declined_or_come_meanwhile_wait_in_order() -> None:
    connection = DaemonConnection(lambda _: None)
    taken: list[Event] = []
    accepts = True

    def take(events: list[Event]) -> bool:
        if accepts:
            taken.extend(events)
        return accepts

    connection.on_events(take)
    connection.data_received(chunk(0))  # no task waits: it has events to write before this one
    assert len(await connection.events()) == 1
    assert taken == []
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(1))
    assert len(taken) == 1
    assert not waiting.done()
    accepts = False
    connection.data_received(encode_message(Result(1, ANSWER)))
    (last,) = await waiting
    assert isinstance(last, Ended)


async def test_a_failure_to_write_pieces_ends_the_call_in_its_task() -> None:
    connection = DaemonConnection(lambda _: None)

    def take(events: list[Event]) -> bool:
        raise ZeroDivisionError(len(events))

    connection.on_events(take)
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(0))
    with pytest.raises(ZeroDivisionError):
        await waiting
