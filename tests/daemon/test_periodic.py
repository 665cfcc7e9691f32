"""What is done again and again, on a real event loop."""

import asyncio

from car_daemon.periodic import Periodic


async def test_it_is_done_after_every_period_until_it_ends_itself() -> None:
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
    # Nothing is left that would do it once more.
    assert periodic._timer is not None
    assert periodic._timer.cancelled()


async def test_what_never_began_can_be_ended() -> None:
    done: list[int] = []
    Periodic(1.0, lambda: done.append(1)).stop()
    assert done == []
