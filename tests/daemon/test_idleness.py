"""When a daemon that nobody uses ends."""

import asyncio

from car_daemon.idleness import Idleness
from car_daemon.periodic import Periodic

SHORT_S = 0.02


async def test_the_end_comes_once_nobody_was_there_for_the_whole_time() -> None:
    ended = asyncio.Event()
    busy = True
    idleness = Idleness(SHORT_S, lambda: busy, ended.set)
    idleness.changed()
    busy = False
    idleness.changed()
    begun = asyncio.get_running_loop().time()
    await asyncio.wait_for(ended.wait(), 10)
    assert asyncio.get_running_loop().time() - begun >= SHORT_S / 2


async def test_who_comes_meanwhile_ends_the_waiting() -> None:
    busy = False
    ended: list[bool] = []
    idleness = Idleness(SHORT_S, lambda: busy, lambda: ended.append(True))
    idleness.changed()
    busy = True
    idleness.changed()
    await asyncio.sleep(2 * SHORT_S)  # nothing announces what does not happen
    assert ended == []


async def test_what_changes_meanwhile_puts_off_no_end() -> None:
    ended = asyncio.Event()
    idleness = Idleness(SHORT_S, lambda: False, ended.set)
    idleness.changed()
    changes = Periodic(SHORT_S / 4, idleness.changed)
    changes.start()
    await asyncio.wait_for(ended.wait(), 10)
    changes.stop()


async def test_without_a_limit_and_after_stop_nothing_ends() -> None:
    ended: list[bool] = []
    Idleness(None, lambda: False, lambda: ended.append(True)).changed()
    stopped = Idleness(SHORT_S, lambda: False, lambda: ended.append(True))
    stopped.changed()
    stopped.stop()
    await asyncio.sleep(2 * SHORT_S)  # nothing announces what does not happen
    assert ended == []
