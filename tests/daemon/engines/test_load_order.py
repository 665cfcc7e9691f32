"""The order of loads: replicas of one model together, models one after the other, other machines at any time."""

import asyncio
from pathlib import Path

from car_daemon.engines.load_order import LoadOrder
from car_daemon.models.entry import ModelEntry
from car_daemon.models.settings import ModelSettings


def entry(*devices: str) -> ModelEntry:
    return ModelEntry("m", ModelSettings(Path("m"), devices=devices), default=False, on_change=lambda _: None)


async def test_replicas_of_one_model_load_together_and_the_next_model_once_the_last_of_them_has() -> None:
    async with asyncio.timeout(10):
        order, pair, single = LoadOrder(), entry("gpu", "gpu"), entry("gpu")
        first, second = [await order.turn(pair, each) for each in pair.replicas]
        waiting = asyncio.create_task(order.turn(single, single.replicas[0]))
        first.close()
        await asyncio.sleep(0)
        assert not waiting.done()
        second.close()
        second.close()
        (await waiting).close()


async def test_engines_on_the_cpu_and_on_other_machines_have_no_turn() -> None:
    async with asyncio.timeout(10):
        order, loading, others = LoadOrder(), entry("gpu"), entry("cpu", "gpu")
        others.replicas[1].placed = True
        await order.turn(loading, loading.replicas[0])
        for replica in others.replicas:
            (await order.turn(others, replica)).close()


def test_no_two_engines_have_one_number() -> None:
    order = LoadOrder()
    assert [order.next_number() for _ in range(3)] == [1, 2, 3]
