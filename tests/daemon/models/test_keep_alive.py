"""The keep-alive time of idle models."""

import asyncio
from pathlib import Path
from typing import cast

from car_daemon.models.entry import ModelEntry
from car_daemon.models.eviction import Eviction, KeepAlive
from car_daemon.models.settings import ModelSettings
from car_protocol.capacity import Pressure
from tests.pace import HANG_S


class World:
    """Idle models, a clock and a level of pressure that the test moves."""

    def __init__(self, **used_at: float) -> None:
        self.now = 0.0
        self.level: Pressure = "none"
        self.used = used_at
        self.gone: list[str] = []
        self.went = asyncio.Event()
        settings = ModelSettings(Path("m"), keep_alive_s=100.0)
        self.entries = [ModelEntry(name, settings, default=False, on_change=lambda _: None) for name in used_at]
        self.keep_alive = KeepAlive(cast(Eviction, self), lambda _: self.level, clock=lambda: self.now)

    def idle(self) -> list[ModelEntry]:
        return sorted((each for each in self.entries if each.name not in self.gone), key=self.used_at)

    def used_at(self, entry: ModelEntry) -> float:
        return self.used[entry.name]

    def unload(self, entry: ModelEntry) -> None:
        self.gone.append(entry.name)
        self.went.set()

    def look_at(self, now: float) -> list[str]:
        self.now = now
        self.keep_alive.look()
        self.keep_alive.stop()
        return self.gone


async def test_models_go_when_their_time_is_over_the_least_recently_used_first() -> None:
    world = World(b=2.0, a=1.0, c=50.0)
    assert world.look_at(100.9) == []
    assert world.look_at(120.0) == ["a", "b"]
    assert world.look_at(150.0) == ["a", "b", "c"]


async def test_some_pressure_leaves_them_a_tenth_of_the_time_and_critical_pressure_none() -> None:
    world = World(a=0.0, b=5.0)
    world.level = "some"
    assert world.look_at(9.9) == []
    assert world.look_at(10.0) == ["a"]
    world.level = "critical"
    assert world.look_at(10.0) == ["a", "b"]


async def test_the_timer_looks_when_the_first_one_is_due() -> None:
    world = World(a=0.0, b=-1.0)
    world.now = 98.99
    world.keep_alive.changed()
    world.now = 99.0
    await asyncio.wait_for(world.went.wait(), HANG_S)
    assert world.gone == ["b"]
    world.keep_alive.stop()


async def test_where_nothing_is_idle_no_timer_runs() -> None:
    world = World()
    world.keep_alive.changed()
    world.keep_alive.stop()
    assert world.gone == []
