"""Costs that were measured on busy cores are measured again once the machine is quiet."""

from pathlib import Path

import pytest
from msgspec import structs

from car_daemon.lifecycle.upkeep import QUIET_S, CurveRenewal, QuietTime, busy_threads
from car_daemon.models.entry import ModelEntry
from car_daemon.models.settings import ModelSettings
from car_protocol.capacity import Policy
from tests.daemon.links import ready_of

BUSY = {"cores_of_others": 1.7}


def served(name: str = "m", inputs: dict[str, float] = BUSY, policy: Policy = "measured") -> ModelEntry:
    entry = ModelEntry(name, ModelSettings(Path(name)), default=False, on_change=lambda _: None)
    ready = structs.replace(ready_of(threads=2, inputs=inputs), policy=policy)
    entry.replicas[0].become("ready", ready=ready)
    return entry


class World:
    """A renewal of models on a machine that obeys the test."""

    def __init__(self, *entries: ModelEntry) -> None:
        self.now = 0.0
        self.busy: set[str] = set()
        self.cores_left = 2
        self.reloaded: list[str] = []
        self._renewal = CurveRenewal(
            entries,
            self._reload,
            busy=lambda name: name in self.busy,
            leaves=lambda threads: threads <= self.cores_left,
            clock=lambda: self.now,
        )

    def look_for(self, seconds: float) -> None:
        """Look once a second."""
        for _ in range(round(seconds)):
            self._renewal.look()
            self.now += 1.0

    def _reload(self, entry: ModelEntry) -> bool:
        self.reloaded.append(entry.name)
        entry.replicas[0].become("loading")
        return True


def test_a_model_whose_costs_were_measured_on_busy_cores_is_loaded_again_in_the_first_idle_minute() -> None:
    world = World(served("other", {}), served())
    world.look_for(QUIET_S)
    assert world.reloaded == []
    world.look_for(60 - QUIET_S)
    assert world.reloaded == ["m"]


@pytest.mark.parametrize("entry", [served(inputs={}), served(policy="config")], ids=["calm", "configured"])
def test_a_model_whose_capacity_is_not_that_of_busy_cores_stays_loaded(entry: ModelEntry) -> None:
    world = World(entry)
    world.look_for(300)
    assert (world.reloaded, busy_threads(entry)) == ([], 0)


def test_requests_of_any_model_and_other_programs_begin_the_quiet_time_anew() -> None:
    world = World(served("other", {}), served())
    for _ in range(3):
        world.busy.add("other")
        world.look_for(2)
        world.busy.clear()
        world.look_for(QUIET_S - 1)
        world.cores_left = 1
        world.look_for(2)
        world.cores_left = 2
        world.look_for(QUIET_S - 1)
    assert world.reloaded == []
    world.look_for(3)
    assert world.reloaded == ["m"]


def test_models_are_loaded_again_one_after_the_other() -> None:
    first = served("first")
    world = World(first, served("second"))
    world.look_for(100)
    assert world.reloaded == ["first"]
    first.replicas[0].become("ready", ready=ready_of())
    world.look_for(2 * QUIET_S - 1)
    assert world.reloaded == ["first"]
    world.look_for(3)
    assert world.reloaded == ["first", "second"]


def test_a_model_that_finds_the_cores_busy_again_is_loaded_after_twice_the_time_and_not_at_once() -> None:
    entry = served()
    world, times = World(entry), list[float]()
    while world.now < 8 * QUIET_S:
        world.look_for(1)
        if entry.replicas[0].ready is None:
            times.append(world.now)
            entry.replicas[0].become(
                "ready", ready=structs.replace(ready_of(threads=2, inputs=BUSY), policy="measured")
            )
    assert [round(time / QUIET_S) for time in times] == [1, 3, 7]


def test_quiet_time_is_counted_from_the_first_quiet_reading() -> None:
    quiet = QuietTime()
    assert [quiet.update(now, quiet=True) for now in (5.0, 34.9, 35.0)] == [False, False, True]
    assert [quiet.update(36.0, quiet=False), quiet.update(37.0, quiet=True)] == [False, False]
