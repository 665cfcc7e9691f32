"""Events of a call wait on their connection in order, and few of them: the socket is not read while many wait."""

import asyncio
from typing import Any

import pytest

from car_client.errors import Overloaded
from car_client.results import Chunk
from car_http.daemon.connection import DaemonConnection, Ended
from car_protocol.envelope import Failure, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.methods import CHUNK
from tests.client.samples import ANSWER


class Source:
    """The transport of a connection to a daemon; `reading` is whether the loop reads it."""

    reading = True

    def pause_reading(self) -> None:
        """As a transport."""
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        """As a transport."""
        assert not self.reading
        self.reading = True


@pytest.fixture
def source() -> Any:
    return Source()


@pytest.fixture
def connection(source: Any) -> DaemonConnection:
    connection = DaemonConnection(lambda _: None)
    connection.connection_made(source)
    return connection


def chunk(seq: int, text: str = "a") -> bytes:
    """Return the frame of a chunk."""
    return encode_message(Notification(CHUNK, {"id": 1, "seq": seq, "text": text}))


async def test_events_that_come_while_no_task_waits_are_taken_at_once_in_their_order(
    connection: DaemonConnection,
) -> None:
    data = chunk(0) + chunk(1) + chunk(2)
    connection.data_received(data[:-20])
    connection.data_received(data[-20:])
    assert [event.seq for event in await connection.events() if isinstance(event, Chunk)] == [0, 1, 2]
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(3) + encode_message(Result(1, ANSWER)))
    first, last = await waiting
    assert isinstance(first, Chunk)
    assert isinstance(last, Ended)


async def test_events_before_an_error_are_taken_before_it_is_raised(connection: DaemonConnection) -> None:
    connection.data_received(chunk(0) + encode_message(Failure(1, RpcError("overloaded").as_object())))
    assert len(await connection.events()) == 1
    with pytest.raises(Overloaded):
        await connection.events()


async def test_the_socket_is_read_again_once_the_events_are_taken(source: Any, connection: DaemonConnection) -> None:
    sent = 0
    while source.reading:
        connection.data_received(chunk(sent, "a" * 1000))
        sent += 1
        assert sent < 1000
    connection.data_received(chunk(sent))  # the loop had read it before
    assert len(await connection.events()) == sent + 1
    assert source.reading
