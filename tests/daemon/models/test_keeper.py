"""Who is loaded, and who has to go for it: the keeper of models with engines that obey the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from car_daemon.memory import MemoryReading
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.footprint import Footprint
from car_daemon.models.keeper import ModelKeeper
from car_daemon.models.room import Room
from tests.daemon.links import ready_of

READY = ready_of()
# What each model takes of a memory of ten.
BYTES = {"default": 0, "small": 3, "other": 3, "large": 9, "huge": 11}


class FakeSupervisor:
    """Counts the lives of a model; it is ready at once unless it was told to be `slow`."""

    def __init__(self, entry: ModelEntry) -> None:
        self._entry = entry
        self.slow = False
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        if not self.slow:
            self._entry.replicas[0].become("ready", ready=READY)

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self._entry.replicas[0].retire()


def broken_memory() -> MemoryReading:
    """Fail as a file system may."""
    raise OSError("no such file")


class World:
    """Models by name, what is asked of them, and a memory of ten bytes."""

    def __init__(self, patience_s: float) -> None:
        self.now = 0.0
        self.asked: dict[str, int] = {}
        self.closed: list[str] = []
        self.refused: list[str] = []
        self.seen: list[tuple[str, str]] = []
        self.changed = asyncio.Event()
        self.entries = {
            name: ModelEntry(name, ModelSettings(Path(name)), default=name == "default", on_change=self.change)
            for name in BYTES
        }
        self.supervisors = {entry: FakeSupervisor(entry) for entry in self.entries.values()}
        self.keeper = ModelKeeper(
            self.supervisors.__getitem__,
            self,
            Room(10, lambda: MemoryReading(100, 100)),
            measure=lambda settings: Footprint(BYTES[settings.path.name], 0, 0),
            clock=lambda: self.now,
            patience_s=patience_s,
        )

    def change(self, entry: ModelEntry) -> None:
        self.seen.append((entry.name, entry.state))
        self.keeper.changed(entry)
        self.changed.set()

    def ask(self, name: str) -> None:
        """Have a request for a model arrive."""
        self.now += 1
        self.asked[name] = self.asked.get(name, 0) + 1
        self.keeper.used(self.entries[name])
        self.keeper.load(self.entries[name])

    def end(self, name: str) -> None:
        """Have the requests for a model end."""
        self.asked[name] = 0
        self.keeper.used(self.entries[name])

    async def served(self, name: str) -> None:
        """Ask for a model and end once it is served."""
        self.ask(name)
        await self.becomes(name, "ready")
        self.end(name)

    async def becomes(self, name: str, state: str) -> None:
        while self.entries[name].state != state:
            self.changed.clear()
            await self.changed.wait()

    def starts(self, name: str) -> int:
        return self.supervisors[self.entries[name]].starts

    def busy(self, model: str) -> bool:
        return self.asked.get(model, 0) > 0

    def engaged(self, model: str) -> bool:
        return self.busy(model)

    def close(self, model: str) -> None:
        self.closed.append(model)

    def model_failed(self, entry: ModelEntry) -> None:
        self.refused.append(entry.name)
        self.asked[entry.name] = 0


@asynccontextmanager
async def world_of(patience_s: float = 100.0) -> AsyncIterator[World]:
    """A keeper at work; every wait has a limit."""
    world = World(patience_s)
    async with asyncio.timeout(10):
        yield world
        await world.keeper.stop()


async def test_all_who_ask_share_one_load() -> None:
    async with world_of() as world:
        for _ in range(5):
            world.ask("small")
        await world.becomes("small", "ready")
        assert world.starts("small") == 1


async def test_two_who_wait_share_one_eviction() -> None:
    async with world_of() as world:
        await world.served("large")
        world.ask("small")
        world.ask("other")
        await world.becomes("other", "ready")
        assert world.entries["small"].state == "ready"
        assert world.closed == ["large"]


async def test_a_model_with_work_goes_when_it_has_none_any_more() -> None:
    async with world_of() as world:
        world.ask("large")
        await world.becomes("large", "ready")
        world.ask("small")
        await world.becomes("small", "loading")
        assert (world.entries["large"].state, world.closed) == ("ready", [])
        world.end("large")
        await world.becomes("small", "ready")
        assert world.entries["large"].state == "unloaded"


async def test_a_model_that_goes_anyway_is_waited_for() -> None:
    async with world_of() as world:
        await world.served("large")
        world.keeper.unload(world.entries["large"])
        assert world.keeper.idle() == []
        world.ask("small")
        await world.becomes("small", "ready")
        assert world.starts("large") == 1


async def test_a_fault_of_our_own_leaves_no_model_loading_for_ever() -> None:
    async with world_of() as world:
        world.keeper.room = Room(10, broken_memory)
        world.ask("small")
        await world.becomes("small", "failed")
        assert world.refused == ["small"]


async def test_after_the_end_nothing_is_loaded() -> None:
    async with world_of() as world:
        await world.keeper.stop()
        world.ask("small")
        assert world.entries["small"].state == "unloaded"


async def test_a_model_that_is_never_idle_is_given_nothing_new_after_a_while() -> None:
    async with world_of(patience_s=0.0) as world:
        world.ask("large")
        await world.becomes("large", "ready")
        world.ask("small")
        await world.becomes("large", "draining")
        assert world.closed == ["large"]
        world.end("large")
        await world.becomes("small", "ready")


async def test_who_is_unloaded_with_requests_that_came_meanwhile_is_loaded_again() -> None:
    async with world_of() as world:
        await world.served("large")
        await world.served("small")
        world.ask("large")
        await world.becomes("large", "ready")
        assert (world.entries["small"].state, world.starts("large")) == ("unloaded", 2)


async def test_what_can_never_have_room_is_refused_and_nobody_goes_for_it() -> None:
    async with world_of() as world:
        await world.served("small")
        world.ask("huge")
        await world.becomes("huge", "unloaded")
        assert (world.refused, world.closed) == (["huge"], [])
        assert world.entries["huge"].shortage == {"needed_bytes": 11, "free_bytes": 7}


async def test_a_load_that_nobody_wants_any_more_is_given_up_before_anybody_goes_for_it() -> None:
    async with world_of() as world:
        world.ask("large")
        await world.becomes("large", "ready")
        world.ask("small")
        await asyncio.sleep(0)
        world.end("small")
        await world.becomes("small", "unloaded")
        assert (world.entries["large"].state, world.starts("small")) == ("ready", 0)


async def test_an_unloading_ends_a_load_that_no_request_waits_for() -> None:
    async with world_of() as world:
        small = world.entries["small"]
        world.supervisors[small].slow = True
        world.keeper.load(small)
        world.keeper.unload(small)
        await world.becomes("small", "unloaded")


async def test_an_unloading_waits_for_the_load_of_requests_and_for_them() -> None:
    async with world_of() as world:
        small = world.entries["small"]
        world.supervisors[small].slow = True
        world.ask("small")
        task = world.keeper.unload(small)
        assert world.keeper.unload(small) is task
        await asyncio.sleep(0)
        assert ("small", "unloaded") not in world.seen
        small.replicas[0].become("ready", ready=READY)
        await world.becomes("small", "draining")
        world.end("small")
        await task
        assert world.seen[-1] == ("small", "unloaded")


async def test_an_engine_that_dies_while_its_model_drains_is_not_waited_for() -> None:
    async with world_of() as world:
        world.ask("small")
        await world.becomes("small", "ready")
        world.keeper.unload(world.entries["small"])
        await world.becomes("small", "draining")
        world.entries["small"].replicas[0].become("loading")
        await world.becomes("small", "ready")
        assert ("small", "unloaded") in world.seen
        assert world.starts("small") == 2


async def test_the_default_model_is_loaded_whatever_the_memory_and_is_never_idle() -> None:
    async with world_of() as world:
        world.keeper.load(world.entries["default"])
        await world.becomes("default", "ready")
        assert world.keeper.idle() == []


async def test_a_model_that_failed_takes_no_memory() -> None:
    async with world_of() as world:
        large = world.entries["large"]
        await world.served("large")
        large.become("failed", reason="a fixed text")
        await world.served("small")
        assert world.closed == []
