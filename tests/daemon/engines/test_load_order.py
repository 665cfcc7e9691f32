"""The order of loads: one after the other onto one GPU, at once onto different ones and onto other machines."""

import asyncio

from car_daemon.engines.supervisor import LoadOrder
from car_daemon.models.replica import Replica
from tests.pace import HANG_S


def replica(device: str, *, placed: bool = False) -> Replica:
    return Replica(device, lambda: None, lambda: None, placed=placed)


async def test_engines_load_onto_one_gpu_one_after_the_other() -> None:
    async with asyncio.timeout(HANG_S):
        order = LoadOrder()
        first = await order.turn(replica("gpu0"))
        others = [asyncio.create_task(order.turn(replica(device))) for device in ("gpu", "gpu0")]
        await asyncio.sleep(0)
        assert not any(each.done() for each in others)
        first.close()
        first.close()
        done, waiting = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, 1)
        for each in done:
            each.result().close()
        for each in waiting:
            (await each).close()


async def test_engines_on_other_gpus_on_the_cpu_and_on_other_machines_load_meanwhile() -> None:
    async with asyncio.timeout(HANG_S):
        order = LoadOrder()
        await order.turn(replica("gpu0"))
        for other in (replica("gpu1"), replica("cpu"), replica("gpu", placed=True)):
            (await order.turn(other)).close()


async def test_a_load_that_is_given_up_while_it_waits_holds_up_no_other() -> None:
    async with asyncio.timeout(HANG_S):
        order = LoadOrder()
        first = await order.turn(replica("gpu"))
        waiting = asyncio.create_task(order.turn(replica("gpu")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        first.close()
        (await order.turn(replica("gpu"))).close()


def test_no_two_engines_have_one_number() -> None:
    order = LoadOrder()
    assert [order.next_number() for _ in range(3)] == [1, 2, 3]
