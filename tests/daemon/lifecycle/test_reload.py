"""Reloads of a daemon with scripted engines: what goes on while a configuration is read, and which one is in force."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from car_client import AsyncClient
from car_daemon.config.settings import Config, Flags, load_config
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.sockets.own_socket import OwnSocket
from tests.pace import HANG_S
from tools.scripted.engine import launch_scripted, paced


class Readings:
    """Reads of a file that takes as long as the test says: each waits for a configuration."""

    def __init__(self) -> None:
        self.begun = 0
        self._given: deque[Config] = deque()
        self._is_given = threading.Semaphore(0)

    def give(self, config: Config) -> None:
        self._given.append(config)
        self._is_given.release()

    def __call__(self) -> Config:
        self.begun += 1
        assert self._is_given.acquire(timeout=HANG_S)
        return self._given.popleft()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[AsyncClient, Config, Readings]]:
    """A client of a daemon that listens, its configuration, and what it reads at a reload."""
    config = load_config(Flags(socket=str(tmp_path / "s"), config="/dev/null"))
    readings, own = Readings(), OwnSocket(config.socket)
    launcher = partial(launch_scripted, pace=paced(0.001))
    daemon = Daemon(config, Sockets(own), Seams(launcher=launcher), readings)
    running = asyncio.create_task(daemon.run())
    async with AsyncClient(config.socket) as client:
        yield client, config, readings
    daemon.stop()
    await running
    own.close()


def of_limit(config: Config, limit: int) -> Config:
    """Return a configuration with another limit of the queue, by which a test knows it."""
    return replace(config, queue=QueueBounds(limit, config.queue.max_bytes, config.queue.overflow))


async def limit_of(client: AsyncClient) -> int:
    """Return the limit of the queue that is in force."""
    return (await client.status()).capacity.limits.queue_limit


async def test_others_are_answered_while_a_long_configuration_is_read(
    served: tuple[AsyncClient, Config, Readings],
) -> None:
    client, config, readings = served
    reload = asyncio.create_task(client.reload())
    before = await limit_of(client)
    await client.infer("Hi", max_tokens=1)
    readings.give(of_limit(config, 7))
    await reload
    assert (before, await limit_of(client)) == (config.queue.limit, 7)


async def test_reloads_that_meet_are_carried_out_one_after_the_other(
    served: tuple[AsyncClient, Config, Readings],
) -> None:
    client, config, readings = served
    first, second = asyncio.create_task(client.reload()), asyncio.create_task(client.reload())
    await client.status()
    readings.give(of_limit(config, 7))
    await first
    readings.give(of_limit(config, 9))
    await second
    assert (readings.begun, await limit_of(client)) == (2, 9)


async def test_a_reload_whose_client_left_is_carried_out_all_the_same(
    served: tuple[AsyncClient, Config, Readings],
) -> None:
    client, config, readings = served
    left = asyncio.create_task(client.reload())
    await client.status()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    second = asyncio.create_task(client.reload())
    readings.give(of_limit(config, 7))
    while readings.begun < 2:
        await client.status()
    limit = await limit_of(client)
    readings.give(of_limit(config, 9))
    await second
    assert (limit, await limit_of(client)) == (7, 9)
