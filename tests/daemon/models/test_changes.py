"""Waiting for what others bring about."""

import asyncio

from car_daemon.models.changes import Changes


async def test_what_is_true_already_is_not_waited_for() -> None:
    assert await Changes().until(lambda: True)


async def test_what_was_true_for_a_moment_is_not_missed() -> None:
    changes, values = Changes(), [0]
    waiting = asyncio.create_task(changes.until(lambda: values[-1] == 1))
    await asyncio.sleep(0)
    for value in (1, 2):
        values.append(value)
        changes.happened()
    assert await asyncio.wait_for(waiting, 10)


async def test_after_its_time_the_waiting_ends_without_it() -> None:
    changes = Changes()
    assert not await changes.until(lambda: False, 0.0)
    changes.happened()


async def test_who_is_cancelled_is_forgotten() -> None:
    changes = Changes()
    looked: list[bool] = []

    def look() -> bool:
        looked.append(True)
        return False

    waiting = asyncio.create_task(changes.until(look))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    before = len(looked)
    changes.happened()
    assert len(looked) == before
