"""Timers, on a real event loop."""

import asyncio
import time
from typing import Any

from car_base.host.timers import Deadlines, Idleness, LoopLag, Periodic, Timer
from tests.pace import HANG_S

SHORT_S = 0.02


async def test_a_periodic_call_is_repeated_until_it_stops_itself() -> None:
    done: list[float] = []
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def do() -> None:
        done.append(loop.time())
        if len(done) == 3:
            periodic.stop()
            ended.set()

    periodic = Periodic(0.005, do)
    began = loop.time()
    periodic.start()
    assert done == []
    await ended.wait()
    assert done[-1] - began >= 0.015
    assert not periodic.running


async def test_a_periodic_call_that_never_started_can_be_stopped() -> None:
    done: list[int] = []
    Periodic(1.0, lambda: done.append(1)).stop()
    assert done == []


async def test_an_idle_time_ends_after_the_whole_limit() -> None:
    ended = asyncio.Event()
    busy = True
    idleness = Idleness(SHORT_S, lambda: busy, ended.set)
    idleness.changed()
    busy = False
    idleness.changed()
    begun = asyncio.get_running_loop().time()
    await asyncio.wait_for(ended.wait(), HANG_S)
    assert asyncio.get_running_loop().time() - begun >= SHORT_S / 2


async def test_a_busy_moment_cancels_the_end_of_an_idle_time() -> None:
    busy = False
    ended: list[bool] = []
    idleness = Idleness(SHORT_S, lambda: busy, lambda: ended.append(True))
    idleness.changed()
    busy = True
    idleness.changed()
    await asyncio.sleep(2 * SHORT_S)  # nothing announces what does not happen
    assert ended == []


async def test_changes_that_stay_idle_do_not_delay_the_end() -> None:
    ended = asyncio.Event()
    idleness = Idleness(SHORT_S, lambda: False, ended.set)
    idleness.changed()
    changes = Periodic(SHORT_S / 4, idleness.changed)
    changes.start()
    await asyncio.wait_for(ended.wait(), HANG_S)
    changes.stop()


async def test_without_a_limit_and_after_a_stop_no_idle_time_ends() -> None:
    ended: list[bool] = []
    Idleness(None, lambda: False, lambda: ended.append(True)).changed()
    stopped = Idleness(SHORT_S, lambda: False, lambda: ended.append(True))
    stopped.changed()
    stopped.stop()
    await asyncio.sleep(2 * SHORT_S)  # nothing announces what does not happen
    assert ended == []


async def test_a_deadline_that_keeps_failing_is_retried_with_pauses() -> None:
    loop = asyncio.get_running_loop()
    failed: list[float] = []
    thrice = asyncio.Event()

    def note(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
        failed.append(loop.time())
        if len(failed) == 3:
            thrice.set()

    def fail() -> None:
        raise ValueError("a defect")

    loop.set_exception_handler(note)
    Deadlines(lambda: 0.0, fail, loop.time).add(0.0)
    await asyncio.wait_for(thrice.wait(), HANG_S)
    assert failed[2] - failed[0] > 0.15


async def test_a_timer_that_is_armed_again_calls_back_once_at_the_later_time() -> None:
    called = asyncio.Event()
    loop = asyncio.get_running_loop()
    times: list[float] = []

    def callback() -> None:
        times.append(loop.time())
        called.set()

    timer = Timer(callback)
    began = loop.time()
    timer.arm(0.001)
    timer.arm(SHORT_S)
    assert timer.armed
    await asyncio.wait_for(called.wait(), HANG_S)
    assert not timer.armed
    assert len(times) == 1
    assert times[0] - began >= SHORT_S / 2


async def test_a_timer_that_is_cancelled_is_not_armed_and_can_be_armed_again() -> None:
    called = asyncio.Event()
    timer = Timer(called.set)
    timer.cancel()
    timer.arm(60)
    timer.cancel()
    assert not timer.armed
    timer.arm(0)
    await asyncio.wait_for(called.wait(), HANG_S)


async def test_a_timer_may_be_armed_by_its_own_callback() -> None:
    called: list[int] = []
    thrice = asyncio.Event()

    def callback() -> None:
        called.append(1)
        if len(called) < 3:
            timer.arm(0)
        else:
            thrice.set()

    timer = Timer(callback)
    timer.arm(0)
    await asyncio.wait_for(thrice.wait(), HANG_S)
    assert not timer.armed


async def test_after_a_stop_no_change_ends_an_idle_time() -> None:
    ended: list[bool] = []
    idleness = Idleness(SHORT_S, lambda: False, lambda: ended.append(True))
    idleness.stop()
    idleness.changed()
    await asyncio.sleep(2 * SHORT_S)  # nothing announces what does not happen
    assert ended == []


async def test_a_deadline_is_met_and_the_next_one_is_set() -> None:
    loop = asyncio.get_running_loop()
    due = [loop.time() + 0.005, loop.time() + 0.01]
    expired: list[float] = []
    done = asyncio.Event()

    def expire() -> None:
        expired.append(due.pop(0))
        if not due:
            done.set()

    deadlines = Deadlines(lambda: due[0] if due else None, expire, loop.time)
    deadlines.add(None)
    deadlines.add(due[1])
    await asyncio.wait_for(done.wait(), HANG_S)
    assert len(expired) == 2


def occupy(seconds: float) -> None:
    """Keep the event loop busy, as a long computation does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_a_loop_that_was_busy_shows_its_lag() -> None:
    lag = LoopLag()
    lag.start()
    occupy(0.55)
    await asyncio.sleep(0.01)  # the timer that is overdue fires first
    lag.stop()
    assert lag.milliseconds >= 40
