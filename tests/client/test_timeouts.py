"""Timeouts of both clients: their errors, and the connection afterwards."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from car_client import AsyncClient, CardError, Client, ConnectTimeout, DaemonUnavailable, RequestTimeout
from car_client.errors import RequestError
from car_client.retry import Deadline
from car_client.transport.blocking_connection import BlockingConnection
from tests.client.fake_daemon import FakeDaemon

SOON_S = 0.05
# Where the same client also gets answers, which a busy machine delays.
LONGER_S = 2.0
LONG = b"a" * 4_000_000 + b"\n"


class Pauses:
    """Keeps the pauses between attempts, and makes them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        time.sleep(seconds)


def cancelled(daemon: FakeDaemon, method: str) -> bool:
    """Wait for a cancellation; return whether it named the first call of a method."""
    asked = daemon.wait_for(method)
    daemon.wait_for("$/cancelRequest")
    return bool(daemon.params("$/cancelRequest") == {"id": asked.id})


@pytest.mark.parametrize("kind", [RequestTimeout, ConnectTimeout])
def test_a_timeout_is_an_error_of_the_client_and_of_python(kind: type[Exception]) -> None:
    assert issubclass(kind, CardError)
    assert issubclass(kind, TimeoutError)
    assert not issubclass(kind, RequestError)


@pytest.mark.slow
def test_a_call_that_takes_too_long_is_cancelled_and_the_connection_goes_on(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    with Client(daemon.path, timeout=LONGER_S) as client:
        with pytest.raises(RequestTimeout, match="within 2 s"):
            client.infer("Hi")
        assert cancelled(daemon, "infer")
        assert client.tokenize("still usable") == [1, 2, 3]
    assert daemon.accepted == 1


@pytest.mark.slow
async def test_a_call_of_asyncio_that_takes_too_long_is_cancelled_and_the_connection_goes_on(
    daemon: FakeDaemon,
) -> None:
    daemon.silent.add("infer")
    async with AsyncClient(daemon.path, timeout=LONGER_S) as client:
        with pytest.raises(RequestTimeout, match="within 2 s"):
            await client.infer("Hi")
        assert await asyncio.to_thread(cancelled, daemon, "infer")
        assert await client.tokenize("still usable") == [1, 2, 3]
    assert daemon.accepted == 1


@pytest.mark.slow
def test_a_stream_times_out_between_two_chunks(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    with Client(daemon.path, timeout=LONGER_S) as client:
        stream = client.infer_stream("Hi")
        assert next(stream).text == "Hel"
        with pytest.raises(RequestTimeout):
            next(stream)
        assert cancelled(daemon, "infer_stream")
        assert list(stream) == []
        assert client.tokenize("still usable") == [1, 2, 3]


@pytest.mark.slow
async def test_a_stream_of_asyncio_times_out_between_two_chunks(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    async with AsyncClient(daemon.path, timeout=LONGER_S) as client:
        stream = client.infer_stream("Hi")
        assert (await anext(stream)).text == "Hel"
        with pytest.raises(RequestTimeout):
            await anext(stream)
        assert await asyncio.to_thread(cancelled, daemon, "infer_stream")


@pytest.mark.slow
def test_the_time_between_chunks_that_the_caller_takes_does_not_count(daemon: FakeDaemon) -> None:
    with Client(daemon.path, timeout=LONGER_S) as client:
        stream = client.infer_stream("Hi")
        next(stream)
        time.sleep(2 * LONGER_S)
        assert next(stream).text == "lo"


@pytest.mark.slow
def test_a_watch_times_out_an_interval_later(daemon: FakeDaemon) -> None:
    with Client(daemon.path, timeout=LONGER_S) as client, client.watch_status(0.1) as watch:
        next(watch)
        with pytest.raises(RequestTimeout):
            next(watch)


@pytest.mark.slow
async def test_a_watch_of_asyncio_times_out_an_interval_later(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path, timeout=LONGER_S) as client, client.watch_status(0.1) as watch:
        await anext(watch)
        with pytest.raises(RequestTimeout):
            await anext(watch)


def test_a_frame_that_the_daemon_does_not_read_ends_the_connection(path: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = BlockingConnection(ours)
        with pytest.raises(RequestTimeout):
            connection.send(LONG, Deadline(SOON_S))
        assert not connection.open


def test_a_missing_daemon_is_waited_for_as_long_as_the_timeout_says(path: Path) -> None:
    begun, pauses = time.monotonic(), Pauses()
    with (
        Client(path, connect_timeout=0.12, pause=pauses) as client,
        pytest.raises(ConnectTimeout, match="no such file") as caught,
    ):
        client.infer("Hi")
    assert time.monotonic() - begun >= 0.12
    assert sum(pauses.seconds) <= 0.12
    assert caught.value.tried == (path,)


def test_the_timeout_of_the_call_bounds_the_connecting_too(path: Path) -> None:
    pauses = Pauses()
    with Client(path, timeout=SOON_S, pause=pauses) as client, pytest.raises(ConnectTimeout):
        client.infer("Hi")
    assert sum(pauses.seconds) <= SOON_S


async def test_a_missing_daemon_is_an_error_of_asyncio_too(path: Path) -> None:
    async with AsyncClient(path, connect_timeout=0) as client:
        with pytest.raises(ConnectTimeout, match="no such file"):
            await client.infer("Hi")


async def test_a_connect_timeout_of_0_is_enough_where_a_daemon_listens(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path, connect_timeout=0) as client:
        assert (await client.infer("Hi")).text == "Hello"


def test_a_full_backlog_is_tried_again(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)
    with listener, socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with Client(path, connect_timeout=SOON_S) as client, pytest.raises(DaemonUnavailable):
            client.connect()
