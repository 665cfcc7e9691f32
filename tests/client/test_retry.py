"""Calls that are sent again: which, how often, and after which pause."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from car_client import (
    AsyncClient,
    Client,
    ConnectionLost,
    ConnectTimeout,
    DaemonUnavailable,
    DeadlineExceeded,
    EngineLost,
    InvalidParams,
    Overloaded,
    ProtocolError,
    RequestError,
)
from car_client.errors import CardError, from_object
from car_client.retry import LONGEST_PAUSE_S, NEVER, Deadline, Retries, is_transient
from car_protocol.errors import REASONS, RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.pace import HANG_S

BUSY = RpcError("overloaded", why="queue full", retry_after_ms=40)
LOST = None


class Pauses:
    """Stands in for sleeping: keeps the pauses and does something at the first."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self._act = act
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == 1:
            self._act()


async def endless_pause(_: float) -> None:
    """Stand in for a pause that only the client's end ends."""
    await asyncio.Event().wait()


def error_of(reason: str, **data: Any) -> RequestError:
    """Return an error as the client raises it."""
    return from_object(RpcError(reason, **data).as_object())


def calls_of(daemon: FakeDaemon, method: str = "infer") -> int:
    """Return how often a method was called."""
    return [call.method for call in daemon.calls].count(method)


@pytest.mark.parametrize("reason", REASONS)
def test_a_retryable_error_is_transient_unless_it_is_the_requests_own_deadline(reason: str) -> None:
    expected = REASONS[reason].retryable and reason != "deadline_exceeded"
    assert is_transient(error_of(reason)) is expected


def test_a_lost_connection_is_transient_and_a_missing_daemon_was_waited_for_already() -> None:
    assert is_transient(ConnectionLost("lost"))
    for error in (DaemonUnavailable("closed"), ConnectTimeout("none"), ProtocolError("gap")):
        assert not is_transient(error)


def test_pauses_double_up_to_the_last_attempt() -> None:
    retries = Retries(3)
    assert [retries.pause_s(error_of("engine_lost"), NEVER) for _ in range(3)] == [0.25, 0.5, 1.0]
    with pytest.raises(EngineLost):
        retries.pause_s(error_of("engine_lost"), NEVER)


def test_the_daemons_hint_is_obeyed_where_it_is_bearable() -> None:
    assert Retries(1).pause_s(error_of("overloaded", retry_after_ms=1500), NEVER) == 1.5
    assert Retries(1).pause_s(error_of("overloaded", retry_after_ms=0), NEVER) == 0
    with pytest.raises(Overloaded):
        Retries(1).pause_s(error_of("overloaded", retry_after_ms=int(LONGEST_PAUSE_S * 1000) + 1), NEVER)


def test_a_pause_beyond_the_deadline_raises_the_error_at_once() -> None:
    with pytest.raises(Overloaded):
        Retries(1).pause_s(error_of("overloaded", retry_after_ms=500), Deadline(0.1))


@pytest.mark.parametrize("first", [[BUSY], [BUSY, BUSY], [LOST]])
def test_a_transient_failure_is_mended_by_the_blocking_client(daemon: FakeDaemon, first: list[Any]) -> None:
    daemon.first["infer"] = list(first)
    pauses = Pauses()
    with Client(daemon.path, pause=pauses) as client:
        assert client.infer("Hi").text == "Hello"
    assert calls_of(daemon) == len(first) + 1
    assert pauses.seconds == [0.25 if error is LOST else 0.04 for error in first]


@pytest.mark.parametrize("first", [[BUSY], [BUSY, BUSY], [LOST]])
async def test_a_transient_failure_is_mended_by_the_asyncio_client(daemon: FakeDaemon, first: list[Any]) -> None:
    daemon.first["infer"] = list(first)
    async with AsyncClient(daemon.path) as client:
        assert (await client.infer("Hi")).text == "Hello"
    assert calls_of(daemon) == len(first) + 1


def test_the_error_is_raised_after_the_last_attempt(daemon: FakeDaemon) -> None:
    daemon.answers["infer"] = BUSY
    with Client(daemon.path, max_retries=1) as client, pytest.raises(Overloaded):
        client.infer("Hi")
    assert calls_of(daemon) == 2


@pytest.mark.parametrize(
    "options", [{"wait": False}, {"queue": False}, {"supersede": "key"}], ids=lambda options: next(iter(options))
)
def test_requests_that_must_not_wait_or_that_supersede_are_sent_once(daemon: FakeDaemon, options: Any) -> None:
    daemon.answers["infer"] = BUSY
    with Client(daemon.path) as client, pytest.raises(Overloaded):
        client.infer("Hi", **options)
    assert calls_of(daemon) == 1


@pytest.mark.parametrize(
    ("method", "act"),
    [
        ("daemon/drain", Client.drain),
        ("daemon/reload", Client.reload),
        ("models/load", lambda client: client.load_model("m")),
        ("models/unload", lambda client: client.unload_model("m")),
        ("daemon/cancel", lambda client: client.cancel_request(1, 2)),
        ("infer", lambda client: client.call("infer", {"prompt": "Hi"})),
    ],
)
def test_calls_that_change_the_daemon_and_raw_ones_are_sent_once(
    daemon: FakeDaemon, method: str, act: Callable[[Client], object]
) -> None:
    daemon.answers[method] = BUSY
    with Client(daemon.path) as client, pytest.raises(Overloaded):
        act(client)
    assert calls_of(daemon, method) == 1


@pytest.mark.parametrize(
    ("reason", "kind"), [("deadline_exceeded", DeadlineExceeded), ("invalid_params", InvalidParams)]
)
def test_other_errors_are_raised_at_once(daemon: FakeDaemon, reason: str, kind: type[CardError]) -> None:
    daemon.answers["infer"] = RpcError(reason)
    with Client(daemon.path) as client, pytest.raises(kind):
        client.infer("Hi")
    assert calls_of(daemon) == 1


@pytest.mark.parametrize("failure", [BUSY, LOST])
def test_a_stream_is_sent_again_until_its_first_chunk(daemon: FakeDaemon, failure: Any) -> None:
    daemon.first["infer_stream"] = [failure]
    with Client(daemon.path, pause=Pauses()) as client, client.infer_stream("Hi") as stream:
        assert [chunk.text for chunk in stream] == ["Hel", "lo"]
        assert stream.answer is not None
        assert stream.answer.text == "Hello"
    assert calls_of(daemon, "infer_stream") == 2


@pytest.mark.parametrize("failure", [BUSY, LOST])
async def test_an_asyncio_stream_is_sent_again_until_its_first_chunk(daemon: FakeDaemon, failure: Any) -> None:
    daemon.first["infer_stream"] = [failure]
    async with AsyncClient(daemon.path) as client, client.infer_stream("Hi") as stream:
        assert [chunk.text async for chunk in stream] == ["Hel", "lo"]
        assert stream.answer is not None
        assert stream.answer.text == "Hello"
    assert calls_of(daemon, "infer_stream") == 2


def test_a_stream_that_delivered_a_chunk_is_never_sent_again(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    with Client(daemon.path) as client:
        stream = client.infer_stream("Hi")
        assert next(stream).text == "Hel"
        daemon.drop()
        with pytest.raises(ConnectionLost):
            next(stream)
    assert calls_of(daemon, "infer_stream") == 1


async def test_an_asyncio_stream_that_delivered_a_chunk_is_never_sent_again(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    async with AsyncClient(daemon.path) as client:
        stream = client.infer_stream("Hi")
        assert (await anext(stream)).text == "Hel"
        daemon.drop()
        with pytest.raises(ConnectionLost):
            await anext(stream)
    assert calls_of(daemon, "infer_stream") == 1


def test_a_cancelled_stream_is_not_sent_again(daemon: FakeDaemon) -> None:
    daemon.silent_after = 0
    with Client(daemon.path) as client:
        stream = client.infer_stream("Hi")
        with stream:
            daemon.silent.add("$/cancelRequest")
            stream.cancel()
            daemon.wait_for("$/cancelRequest")
            daemon.drop()
            with pytest.raises(ConnectionLost):
                next(stream)
    assert calls_of(daemon, "infer_stream") == 1


def test_the_blocking_client_waits_for_a_daemon_that_is_starting(path: Path) -> None:
    started: list[FakeDaemon] = []
    with Client(path, pause=Pauses(lambda: started.append(FakeDaemon(path).start()))) as client:
        assert client.infer("Hi").text == "Hello"
    started[0].stop()


async def test_a_call_in_flight_is_not_sent_again_once_the_client_is_closed(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    client = AsyncClient(daemon.path)
    waiting: Coroutine[Any, Any, Any] = client.infer("Hi")
    task = asyncio.create_task(waiting)
    await daemon.saw("infer")
    await client.aclose()
    with pytest.raises(DaemonUnavailable, match="closed"):
        await asyncio.wait_for(task, HANG_S)


async def test_a_call_in_its_pause_ends_at_once_when_the_client_is_closed(daemon: FakeDaemon) -> None:
    daemon.first["infer"] = [RpcError("overloaded", why="queue full", retry_after_ms=9000)]
    client = AsyncClient(daemon.path, pause=endless_pause)
    waiting: Coroutine[Any, Any, Any] = client.infer("Hi")
    task = asyncio.create_task(waiting)
    await daemon.saw("infer")
    await client.tokenize("the refusal came before this answer")
    await client.aclose()
    with pytest.raises(DaemonUnavailable, match="closed"):
        await asyncio.wait_for(task, HANG_S)
    assert calls_of(daemon) == 1


async def test_a_stream_in_its_pause_ends_at_once_when_the_client_is_closed(daemon: FakeDaemon) -> None:
    daemon.first["infer_stream"] = [RpcError("overloaded", why="queue full", retry_after_ms=9000)]
    client = AsyncClient(daemon.path, pause=endless_pause)
    first: Coroutine[Any, Any, Any] = anext(client.infer_stream("Hi"))
    task = asyncio.create_task(first)
    await daemon.saw("infer_stream")
    await client.tokenize("the refusal came before this answer")
    await client.aclose()
    with pytest.raises(DaemonUnavailable, match="closed"):
        await asyncio.wait_for(task, HANG_S)
    assert calls_of(daemon, "infer_stream") == 1


async def test_a_stream_that_is_left_in_its_pause_ends_at_once_and_is_not_sent_again(daemon: FakeDaemon) -> None:
    daemon.first["infer_stream"] = [RpcError("overloaded", why="queue full", retry_after_ms=9000)]
    async with AsyncClient(daemon.path, pause=endless_pause) as client:
        stream = client.infer_stream("Hi")
        task = asyncio.create_task(anext(stream, None))
        await daemon.saw("infer_stream")
        await client.tokenize("the refusal came before this answer")
        await stream.aclose()
        assert await asyncio.wait_for(task, HANG_S) is None
    assert calls_of(daemon, "infer_stream") == 1
