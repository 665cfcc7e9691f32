"""Listeners hear the status at their own pace, as long as they listen."""

import asyncio
from typing import Any

from car_daemon.peer import Peer
from car_daemon.status_watch import StatusWatch


class FakeListener:
    """Counts what it hears; `heard` is set at the third time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.peer = Peer(1000, 1)
        self.closed = False
        self.blocked = False
        self.count = 0
        self.heard = asyncio.Event()

    def notify(self, method: str, params: Any) -> None:
        """Hear one."""
        assert (method, params) == ("daemon/status_changed", self.peer)
        self.count += 1
        if self.count == 3:
            self.heard.set()


def watch() -> StatusWatch:
    describe: Any = lambda peer: peer  # noqa: E731 - the status is the peer that it is for
    return StatusWatch(describe)


async def test_several_listeners_all_keep_hearing() -> None:
    status, listeners = watch(), [FakeListener(number) for number in range(3)]
    for listener in listeners:
        status.start(listener, 5)
    for listener in listeners:
        await listener.heard.wait()


async def test_who_stops_listening_hears_no_more() -> None:
    status, one, other = watch(), FakeListener(1), FakeListener(2)
    status.start(one, 5)
    status.start(other, 5)
    status.stop(one)
    await other.heard.wait()
    assert one.count == 0


async def test_who_does_not_read_is_passed_over_until_it_does() -> None:
    status, slow, other = watch(), FakeListener(1), FakeListener(2)
    slow.blocked = True
    status.start(slow, 5)
    status.start(other, 5)
    await other.heard.wait()
    assert slow.count == 0
    slow.blocked = False
    await slow.heard.wait()


async def test_a_closed_connection_is_forgotten() -> None:
    status, gone, other = watch(), FakeListener(1), FakeListener(2)
    gone.closed = True
    status.start(gone, 5)
    status.start(other, 5)
    await other.heard.wait()
    assert gone.count == 0
    status.stop(gone)


async def test_subscribing_again_changes_the_pace_and_nothing_else() -> None:
    status, one = watch(), FakeListener(1)
    status.start(one, 60_000)
    status.start(one, 5)
    await one.heard.wait()
