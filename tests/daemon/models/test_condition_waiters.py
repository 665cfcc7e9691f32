"""Waits for conditions on state that changes elsewhere."""

import asyncio

from car_base.host.timers import ConditionWaiters
from tests.pace import HANG_S


async def test_what_is_true_already_is_not_waited_for() -> None:
    assert await ConditionWaiters().until(lambda: True)


async def test_what_was_true_for_a_moment_is_not_missed() -> None:
    waiters, values = ConditionWaiters(), [0]
    waiting = asyncio.create_task(waiters.until(lambda: values[-1] == 1))
    await asyncio.sleep(0)
    for value in (1, 2):
        values.append(value)
        waiters.changed()
    assert await asyncio.wait_for(waiting, HANG_S)


async def test_after_its_time_the_waiting_ends_without_it() -> None:
    waiters = ConditionWaiters()
    assert not await waiters.until(lambda: False, 0.0)
    waiters.changed()


async def test_a_cancelled_call_is_forgotten() -> None:
    waiters = ConditionWaiters()
    looked: list[bool] = []

    def look() -> bool:
        looked.append(True)
        return False

    waiting = asyncio.create_task(waiters.until(look))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    before = len(looked)
    waiters.changed()
    assert len(looked) == before
