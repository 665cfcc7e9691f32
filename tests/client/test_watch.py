"""`watch_status` of both clients: pushed by the daemon, or polled."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from car_client import AsyncClient, Client, DaemonUnavailable, RequestError
from car_client.async_watch import AsyncStatusWatch
from car_client.watch import StatusWatch
from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.pace import HANG_S

SOON_S = 0.1


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[Client]:
    """A blocking client."""
    with Client(daemon.path) as client:
        yield client


@pytest.fixture
def watch(client: Client) -> StatusWatch:
    """A watch of the blocking client that was not begun."""
    return client.watch_status(SOON_S)


@pytest.fixture
async def async_watch(daemon: FakeDaemon) -> AsyncIterator[AsyncStatusWatch]:
    """A watch of the asyncio client that was not begun."""
    async with AsyncClient(daemon.path) as client:
        yield client.watch_status(SOON_S)


def test_the_first_status_is_the_answer_and_the_next_ones_are_what_the_daemon_sends(
    daemon: FakeDaemon, watch: StatusWatch
) -> None:
    assert next(watch).pid == 4242
    assert daemon.params("daemon/status") == {"subscribe": True, "interval_ms": 100}
    daemon.tell_status(pid=1)
    assert next(watch).pid == 1
    assert watch.take() is None


def test_of_statuses_that_were_not_taken_the_newest_is_the_next(
    daemon: FakeDaemon, client: Client, watch: StatusWatch
) -> None:
    next(watch)
    daemon.tell_status(pid=1)
    daemon.tell_status(pid=2)
    client.tokenize("requests go on beside it")
    watch.wait()
    assert (next(watch).pid, watch.take()) == (2, None)


def test_other_descriptors_end_the_wait(watch: StatusWatch) -> None:
    next(watch)
    read, write = os.pipe()
    os.write(write, b"x")
    watch.wait(read)
    assert watch.take() is None
    os.close(read)
    os.close(write)


def test_a_closed_watch_unsubscribes_unless_another_one_goes_on(
    daemon: FakeDaemon, client: Client, watch: StatusWatch
) -> None:
    other = client.watch_status(SOON_S)
    next(watch)
    next(other)
    watch.close()
    daemon.tell_status(pid=1)
    assert next(other).pid == 1
    other.close()
    assert daemon.params("daemon/status") == {"subscribe": False}


def test_several_watches_have_the_shortest_of_their_intervals_until_it_is_closed(
    daemon: FakeDaemon, client: Client
) -> None:
    slow, fast, slower = (client.watch_status(seconds) for seconds in (0.3, 0.1, 5.0))
    asked = []
    for watch in (slow, fast, slower):
        next(watch)
        asked.append(daemon.params("daemon/status")["interval_ms"])
    fast.close()
    asked.append(daemon.params("daemon/status")["interval_ms"])
    assert asked == [300, 100, 100, 300]


def test_a_daemon_that_pushes_no_statuses_is_polled(daemon: FakeDaemon, watch: StatusWatch) -> None:
    daemon.offers_status = False
    assert [next(watch).pid for _ in range(3)] == [4242] * 3
    assert len([call for call in daemon.calls if call.method == "daemon/status"]) == 4


def test_a_lost_connection_ends_the_watch(daemon: FakeDaemon, watch: StatusWatch) -> None:
    next(watch)
    daemon.drop()
    with pytest.raises(DaemonUnavailable):
        next(watch)
    watch.close()


def test_another_error_is_raised(daemon: FakeDaemon, watch: StatusWatch) -> None:
    daemon.offers_status = False
    daemon.answers["daemon/status"] = RpcError("internal_error")
    with pytest.raises(RequestError):
        next(watch)


async def test_statuses_are_pushed_to_asyncio_too(daemon: FakeDaemon, async_watch: AsyncStatusWatch) -> None:
    assert (await anext(async_watch)).pid == 4242
    daemon.tell_status(pid=1)
    assert (await anext(async_watch)).pid == 1
    await async_watch.aclose()
    assert daemon.params("daemon/status") == {"subscribe": False}


async def test_asyncio_polls_a_daemon_that_pushes_no_statuses(
    daemon: FakeDaemon, async_watch: AsyncStatusWatch
) -> None:
    daemon.offers_status = False
    assert [(await anext(async_watch)).pid for _ in range(3)] == [4242] * 3
    await async_watch.aclose()


async def test_a_lost_connection_ends_the_asyncio_watch(daemon: FakeDaemon, async_watch: AsyncStatusWatch) -> None:
    await anext(async_watch)
    daemon.drop()
    with pytest.raises(DaemonUnavailable):
        await anext(async_watch)
    await async_watch.aclose()


async def test_a_task_that_waits_for_a_status_ends_when_the_watch_is_closed(async_watch: AsyncStatusWatch) -> None:
    await anext(async_watch)
    waiting = asyncio.create_task(anext(async_watch, None))
    await asyncio.sleep(0)
    await async_watch.aclose()
    assert await asyncio.wait_for(waiting, HANG_S) is None
    assert await anext(async_watch, None) is None


async def test_a_first_step_that_is_cancelled_leaves_no_subscription(
    daemon: FakeDaemon, async_watch: AsyncStatusWatch
) -> None:
    daemon.silent.add("daemon/status")
    first = asyncio.create_task(anext(async_watch))
    await asyncio.to_thread(daemon.wait_for, "daemon/status")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.to_thread(daemon.wait_for, "daemon/status", 2)
    assert daemon.params("daemon/status") == {"subscribe": False}


async def test_a_watch_that_is_closed_during_its_first_step_leaves_no_subscription(
    daemon: FakeDaemon, async_watch: AsyncStatusWatch
) -> None:
    daemon.silent.add("daemon/status")
    first = asyncio.create_task(anext(async_watch, None))
    await daemon.saw("daemon/status")
    await async_watch.aclose()
    assert await asyncio.wait_for(first, HANG_S) is None
    await asyncio.to_thread(daemon.wait_for, "daemon/status", 2)
    assert daemon.params("daemon/status") == {"subscribe": False}


async def test_a_watch_that_is_closed_before_there_is_a_daemon_ends_at_once(path: Path) -> None:
    async with AsyncClient(path) as client:
        watch = client.watch_status()
        first = asyncio.create_task(anext(watch, None))
        await asyncio.sleep(0)
        await watch.aclose()
        assert await asyncio.wait_for(first, HANG_S) is None


async def test_a_watch_that_is_closed_between_two_polls_ends_at_once(daemon: FakeDaemon) -> None:
    daemon.offers_status = False
    async with AsyncClient(daemon.path) as client:
        watch = client.watch_status(60)
        await anext(watch)
        second = asyncio.create_task(anext(watch, None))
        await client.tokenize("the pause has begun before this answer")
        await watch.aclose()
        assert await asyncio.wait_for(second, HANG_S) is None


async def test_a_watch_whose_poll_is_in_a_pause_before_its_next_attempt_ends_at_once(
    daemon: FakeDaemon, async_watch: AsyncStatusWatch
) -> None:
    daemon.offers_status = False
    await anext(async_watch)
    daemon.first["daemon/status"] = [RpcError("overloaded", why="queue full", retry_after_ms=9000)]
    second = asyncio.create_task(anext(async_watch, None))
    await asyncio.to_thread(daemon.wait_for, "daemon/status", 3)
    await async_watch.aclose()
    assert await asyncio.wait_for(second, HANG_S) is None


async def test_a_refused_farewell_does_not_keep_a_watch_from_closing(
    daemon: FakeDaemon, async_watch: AsyncStatusWatch
) -> None:
    await anext(async_watch)
    daemon.first["daemon/status"] = [RpcError("overloaded", why="queue full", retry_after_ms=9000)]
    await asyncio.wait_for(async_watch.aclose(), HANG_S)
    assert daemon.params("daemon/status") == {"subscribe": False}
    # The subscription and one farewell, which is not sent again after the refusal's pause.
    assert [call.method for call in daemon.calls].count("daemon/status") == 2


def test_leaving_the_block_of_a_watch_unsubscribes(daemon: FakeDaemon, watch: StatusWatch) -> None:
    with watch:
        next(watch)
    assert daemon.params("daemon/status") == {"subscribe": False}


def test_a_watch_may_be_left_after_its_connection_was_lost(daemon: FakeDaemon, watch: StatusWatch) -> None:
    with watch:
        next(watch)
        daemon.drop()
        daemon.wait_until_gone()
