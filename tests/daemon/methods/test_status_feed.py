"""Subscriptions to the status: encodings by tick and user, turns with frames, intervals in ticks."""

import asyncio
from collections.abc import Callable

from car_daemon.connections.fair_queue import FairQueue
from car_daemon.methods.status_report import TICK_S, Encode, StatusFeed
from car_daemon.people.identity import Identity
from tests.daemon.captured_log import capture_logs
from tests.pace import HANG_S, SetClock

USERS, EACH = 10, 100


class Encodings:
    """Encodes the number of the tick and the user, and counts; the first ticks fail where the test says so."""

    def __init__(self, failing: int = 0) -> None:
        self.ticks = 0
        self.encoded = 0
        self._failing = failing

    def __call__(self) -> Encode:
        self.ticks += 1
        return self._encode

    def _encode(self, viewer: Identity) -> bytes:
        self.encoded += 1
        if self.ticks <= self._failing:
            raise ValueError("a defect")
        return b"%d of %d" % (self.ticks, viewer.uid)


class Client:
    """A subscriber that keeps what is sent to it."""

    def __init__(self, uid: int = 1, on_push: Callable[[], None] = lambda: None) -> None:
        self.identity = Identity(uid)
        self.received: list[bytes] = []
        self._news = asyncio.Event()
        self._on_push = on_push

    def push(self, frame: bytes) -> None:
        self._on_push()
        self.received.append(frame)
        self._news.set()

    async def has(self, count: int) -> None:
        """Return once this many notifications were received."""
        async with asyncio.timeout(HANG_S):
            while len(self.received) < count:
                self._news.clear()
                await self._news.wait()


async def test_a_thousand_subscribers_of_ten_users_take_ten_encodings_a_tick() -> None:
    encodings = Encodings()
    feed = StatusFeed(FairQueue(), encodings)
    clients = [Client(uid) for uid in range(USERS) for _ in range(EACH)]
    for client in clients:
        feed.add(client.push, client.identity, TICK_S)
    assert repr(feed) == "<StatusFeed subscribers=1000 due=0>"
    for client in clients:
        await client.has(1)
    for client in clients:
        feed.remove(client.push)
    assert encodings.encoded == encodings.ticks * USERS
    assert all(client.received[0] == b"1 of %d" % client.identity.uid for client in clients)


async def test_other_work_of_the_event_loop_runs_between_two_milliseconds_of_notifications() -> None:
    now = 0.0
    most = since = 0

    def takes_time() -> None:
        nonlocal now, since
        now, since = now + 0.0001, since + 1

    feed = StatusFeed(FairQueue(lambda: now), Encodings())
    clients = [Client(on_push=takes_time) for _ in range(1000)]
    for client in clients:
        feed.add(client.push, client.identity, TICK_S)
    while not all(client.received for client in clients):
        await asyncio.sleep(0)
        most, since = max(most, since), 0
    for client in clients:
        feed.remove(client.push)
    assert 0 < most <= 21


async def test_a_longer_interval_leaves_ticks_out_and_the_last_interval_counts() -> None:
    # A turn serves all that is due, whatever the machine does meanwhile.
    feed = StatusFeed(FairQueue(SetClock()), Encodings())
    often, seldom = Client(), Client()
    feed.add(often.push, often.identity, 60)
    feed.add(often.push, often.identity, 0.1)
    feed.add(seldom.push, seldom.identity, 0.34)
    await often.has(6)
    for client in (often, seldom):
        feed.remove(client.push)
    assert [frame.split()[0] for frame in often.received] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [frame.split()[0] for frame in seldom.received] == [b"3", b"6"]


async def test_a_subscriber_that_ends_is_notified_no_more_even_when_its_turn_was_to_come() -> None:
    feed = StatusFeed(FairQueue(), Encodings())
    second = Client()
    first = Client(on_push=lambda: feed.remove(second.push))
    feed.add(first.push, first.identity, 0.1)
    feed.add(second.push, second.identity, 0.1)
    await first.has(2)
    feed.remove(first.push)
    feed.remove(first.push)
    await asyncio.sleep(0.15)  # nothing announces what does not happen
    assert (len(first.received), second.received) == (2, [])


async def test_a_defect_of_one_status_is_logged_and_the_next_is_sent() -> None:
    encodings = Encodings(failing=1)
    feed = StatusFeed(FairQueue(), encodings)
    client = Client()
    feed.add(client.push, client.identity, 0.1)
    with capture_logs() as logs:
        await client.has(1)
    feed.remove(client.push)
    assert client.received == [b"2 of 1"]
    assert [entry["event"] for entry in logs] == ["status.failed"]
