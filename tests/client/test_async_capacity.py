"""Capacity as the asyncio client caches it, and the connection that comes back."""

import asyncio
from itertools import islice
from pathlib import Path

import pytest

from car_client import AsyncClient, DaemonUnavailable
from car_client.retry import LONGEST_DELAY_S, backoff
from car_client.transport.async_connection import AsyncReconnector
from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.pace import HANG_S


class Clock:
    """Stands in for sleeping: notes the delays and lets the test say when each is over."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self._asleep: asyncio.Queue[float] = asyncio.Queue()
        self._ticks: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, seconds: float) -> None:
        self.delays.append(seconds)
        self._asleep.put_nowait(seconds)
        await self._ticks.get()

    async def asleep(self) -> None:
        """Wait until the client sleeps."""
        await self._asleep.get()

    def tick(self) -> None:
        """End one sleep."""
        self._ticks.put_nowait(None)


async def test_capacity_is_one_without_a_daemon(path: Path) -> None:
    async with AsyncClient(path) as client:
        assert client.capacity == 1


async def test_capacity_is_the_declared_figure_and_is_requested_once(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        assert client.capacity == 1
        await client.tokenize("any request will do")
        assert client.capacity == 4
    asked = [call for call in daemon.calls if call.method == "inference/capacity"]
    assert [call.params for call in asked] == [b'{"subscribe":true}']


async def test_connect_waits_for_the_figure(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        await client.connect()
        assert client.capacity == 4


async def test_a_notification_refreshes_the_figure(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        await client.connect()
        daemon.declare(2)
        await client.tokenize("what comes after the notification")
        assert client.capacity == 2


async def test_capacity_is_one_again_after_a_loss(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    async with AsyncClient(daemon.path, max_retries=0) as client:
        await client.connect()
        task = asyncio.create_task(client.infer("Hi"))
        await daemon.saw("infer")
        daemon.drop()
        with pytest.raises(DaemonUnavailable):
            await task
        assert client.capacity == 1


async def test_capacity_is_one_again_after_closing(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        await client.connect()
    assert client.capacity == 1


async def test_a_client_older_than_the_daemon_finds_it(path: Path) -> None:
    clock = Clock()
    async with AsyncClient(path, pause=clock) as client:
        await clock.asleep()
        waiting = asyncio.create_task(client.infer("Hi"))
        daemon = FakeDaemon(path).start()
        clock.tick()
        assert (await waiting).text == "Hello"
        assert client.capacity == 4
    await asyncio.to_thread(daemon.stop)


async def test_a_restarted_daemon_is_found_again(daemon: FakeDaemon) -> None:
    clock = Clock()
    async with AsyncClient(daemon.path, pause=clock) as client:
        await client.connect()
        await asyncio.to_thread(daemon.stop)
        await clock.asleep()
        assert client.capacity == 1
        daemon.start()
        clock.tick()
        await client.connect()
        assert client.capacity == 4


async def test_attempts_back_off_and_begin_anew_after_a_good_connection(path: Path) -> None:
    clock = Clock()
    async with AsyncClient(path, pause=clock) as client:
        for _ in range(3):
            await clock.asleep()
            clock.tick()
        await clock.asleep()
        daemon = FakeDaemon(path).start()
        clock.tick()
        await client.connect()
        daemon.drop()
        await clock.asleep()
    await asyncio.to_thread(daemon.stop)
    assert clock.delays == [0.05, 0.1, 0.2, 0.4, 0.05]


async def test_a_daemon_that_refuses_connections_is_backed_off_from(daemon: FakeDaemon) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1024)
    daemon.silent.add("inference/capacity")
    clock = Clock()
    async with AsyncClient(daemon.path, pause=clock):
        for _ in range(2):
            await clock.asleep()
            clock.tick()
        await clock.asleep()
    assert clock.delays == [0.05, 0.1, 0.2]


async def test_a_request_waits_only_so_long_for_a_daemon(path: Path) -> None:
    clock = Clock()
    async with AsyncClient(path, connect_timeout=0.01, pause=clock) as client:
        await clock.asleep()
        with pytest.raises(DaemonUnavailable):
            await client.infer("Hi")


async def test_the_second_path_is_tried_when_the_first_is_dead(daemon: FakeDaemon) -> None:
    reconnector = AsyncReconnector([daemon.path.parent / "nothing", daemon.path], asyncio.sleep)
    connection = await reconnector.ready(timeout_s=HANG_S)
    assert not connection.lost.is_set()
    await reconnector.aclose()


def test_the_delays_double_up_to_a_bound() -> None:
    delays = list(islice(backoff(), 10))
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert delays[-2:] == [LONGEST_DELAY_S, LONGEST_DELAY_S]
