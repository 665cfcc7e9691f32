"""The drain of a daemon and the answers to its callers."""

import asyncio
from typing import cast

from msgspec import Struct

from car_daemon.lifecycle.drain import Drain
from car_daemon.requests.answer import Responder
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.status import Drained
from tests.pace import HANG_S


class FakeInference:
    """Has unfinished requests until the test sets `idle`."""

    def __init__(self) -> None:
        self.idle = False
        self.refused: list[str] = []

    def refuse_all(self, reason: str) -> None:
        self.refused.append(reason)


class Results:
    """A responder that keeps its results."""

    def __init__(self) -> None:
        self.all: list[Struct] = []

    def result(self, result: Struct) -> None:
        self.all.append(result)


def drain_of(inference: FakeInference) -> Drain:
    return Drain(cast(Inference, inference), Scheduler(Gate()))


async def test_callers_during_a_drain_and_after_it_get_the_same_result() -> None:
    inference, early, late = FakeInference(), Results(), Results()
    drain = drain_of(inference)
    drain.begin(60, cast(Responder, early))
    end = asyncio.create_task(drain.finish())
    await asyncio.sleep(0)
    assert (early.all, end.done()) == ([], False)
    inference.idle = True
    drain.changed()
    await end
    drain.begin(60, cast(Responder, late))
    assert early.all == late.all == [Drained(0, 0)]


async def test_a_hurried_drain_refuses_unfinished_requests() -> None:
    inference = FakeInference()
    drain = drain_of(inference)
    drain.begin(60)
    drain.hurry()
    await drain.finish()
    assert inference.refused == ["draining"]


async def test_the_first_call_decides_how_long_a_drain_may_take() -> None:
    drain = drain_of(FakeInference())
    drain.begin(600)
    drain.begin(5)
    assert drain.patience_s == 600


async def test_a_drain_without_unfinished_requests_ends_at_once() -> None:
    inference, caller = FakeInference(), Results()
    inference.idle = True
    drain = drain_of(inference)
    drain.begin(60, cast(Responder, caller))
    async with asyncio.timeout(HANG_S):
        await drain.finish()
    assert caller.all == [Drained(0, 0)]
