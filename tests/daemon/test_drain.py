"""The end of a daemon, as those hear of it who asked for it."""

import asyncio
from typing import cast

from msgspec import Struct

from car_daemon.drain import Drain
from car_daemon.inference import Inference
from car_daemon.pending import Reply
from car_daemon.scheduler.totals import Totals
from car_protocol.admin import Drained


class FakeInference:
    """Has something to finish until the test says that it is done."""

    def __init__(self) -> None:
        self.drained = asyncio.Event()
        self.refused: list[str] = []

    def drain(self) -> None: ...

    def refuse_all(self, reason: str) -> None:
        self.refused.append(reason)


class Results:
    """What somebody was told."""

    def __init__(self) -> None:
        self.all: list[Struct] = []

    def result(self, result: Struct) -> None:
        self.all.append(result)


def drain_of(inference: FakeInference) -> Drain:
    return Drain(cast(Inference, inference), Totals())


async def test_who_asks_during_a_drain_and_who_asks_after_it_hear_the_same() -> None:
    inference, early, late = FakeInference(), Results(), Results()
    drain = drain_of(inference)
    drain.begin(60, cast(Reply, early))
    end = asyncio.create_task(drain.finish())
    await asyncio.sleep(0)
    assert (early.all, end.done()) == ([], False)
    inference.drained.set()
    await end
    drain.begin(60, cast(Reply, late))
    assert early.all == late.all == [Drained(0, 0)]


async def test_a_drain_in_a_hurry_refuses_what_is_not_done() -> None:
    inference = FakeInference()
    drain = drain_of(inference)
    drain.begin(60)
    drain.hurry()
    await drain.finish()
    assert inference.refused == ["draining"]


async def test_how_long_a_drain_may_take_is_what_was_said_first() -> None:
    drain = drain_of(FakeInference())
    drain.begin(600)
    drain.begin(5)
    assert drain.patience_s == 600
