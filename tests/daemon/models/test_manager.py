"""Loads and evictions: the manager of models with engines that obey the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import structs

from car_base.host.devices import Device
from car_base.host.memory import MemoryReading, MemorySource
from car_base.ipc.model_sizes import ModelSizes
from car_daemon.models.entry import ModelEntry
from car_daemon.models.manager import ModelManager
from car_daemon.models.memory_budget import MemoryBudget, taken_of
from car_daemon.models.memory_estimate import MemoryEstimate
from car_daemon.models.settings import ModelSettings
from tests.daemon.captured_log import capture_logs
from tests.daemon.links import ready_of
from tests.pace import HANG_S

READY = ready_of()
# The bytes of each model in a memory of ten.
BYTES = {"default": 0, "small": 3, "other": 3, "large": 9, "huge": 11}


class FakeSupervisor:
    """Counts the lives of a model; it is ready at once unless it is `slow`."""

    def __init__(self, entry: ModelEntry) -> None:
        self._entry = entry
        self.slow = False
        self.ready = READY
        self.starts = 0
        self.started = asyncio.Event()
        self.restarts = 0

    def start(self) -> None:
        self.starts += 1
        self.started.set()
        self._entry.replicas[0].become("loading")
        if not self.slow:
            self._entry.replicas[0].become("ready", ready=self.ready)

    def restart(self) -> None:
        self.restarts += 1

    def grow(self) -> None:
        self._entry.renew()

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self._entry.replicas[0].retire()


def broken_memory() -> MemoryReading:
    """Fail as a file system may."""
    raise OSError("no such file")


class World:
    """Models by name, the number of their requests, and a memory of ten bytes."""

    def __init__(self, give_way_s: float) -> None:
        self.now = 0.0
        self.requests: dict[str, int] = {}
        self.closed: list[str] = []
        self.refused: list[str] = []
        self.seen: list[tuple[str, str]] = []
        self.changed = asyncio.Event()
        self.settled = 0
        self.devices: list[Device] = []
        self.searches = 0
        self.bytes = dict(BYTES)  # on the host
        self.sizes: dict[str, ModelSizes] = {}
        self.read_memory: MemorySource = lambda: MemoryReading(100, 100)
        self.entries = {
            name: ModelEntry(name, ModelSettings(Path(name)), default=name == "default", on_change=self.change)
            for name in BYTES
        }
        self.supervisors = {entry: FakeSupervisor(entry) for entry in self.entries.values()}
        self.manager = ModelManager(
            self.supervisors.__getitem__,
            self,
            MemoryBudget(10, lambda: self.read_memory(), self.find_devices),
            measure=self.measure,
            settle=self.settle,
            clock=lambda: self.now,
            give_way_s=give_way_s,
        )

    def measure(self, settings: ModelSettings) -> MemoryEstimate:
        """Return the bytes of a model on the host, or its sizes where it is on a GPU."""
        name = settings.path.name
        sizes = self.sizes.get(name)
        return MemoryEstimate(self.bytes[name], 0, 0) if sizes is None else MemoryEstimate(0, 0, 0, sizes)

    async def find_devices(self) -> list[Device]:
        """Return the GPUs, less what the models took of them."""
        self.searches += 1
        taken = sum(taken_of(each).get("CUDA0", 0) for each in self.entries.values())
        return [structs.replace(each, free=each.free - taken) for each in self.devices]

    async def settle(self) -> None:
        self.settled += 1

    def change(self, entry: ModelEntry) -> None:
        self.seen.append((entry.name, entry.state))
        self.manager.changed(entry)
        self.changed.set()

    def request(self, name: str) -> None:
        """Have a request for a model arrive."""
        self.now += 1
        self.requests[name] = self.requests.get(name, 0) + 1
        self.manager.eviction.used(self.entries[name])
        self.manager.load(self.entries[name])

    def end(self, name: str) -> None:
        """Have the requests for a model end."""
        self.requests[name] = 0
        self.manager.eviction.used(self.entries[name])

    async def served(self, name: str) -> None:
        """Request a model and end once it is served."""
        self.request(name)
        await self.becomes(name, "ready")
        self.end(name)

    async def becomes(self, name: str, state: str) -> None:
        while self.entries[name].state != state:
            self.changed.clear()
            await self.changed.wait()

    def starts(self, name: str) -> int:
        return self.supervisors[self.entries[name]].starts

    def busy(self, model: str) -> bool:
        return self.requests.get(model, 0) > 0

    def engaged(self, model: str) -> bool:
        return self.busy(model)

    def close(self, model: str) -> None:
        self.closed.append(model)

    def model_failed(self, entry: ModelEntry) -> None:
        self.refused.append(entry.name)
        self.requests[entry.name] = 0


@asynccontextmanager
async def world_of(give_way_s: float = 100.0) -> AsyncIterator[World]:
    """A manager at work; every wait has a limit."""
    world = World(give_way_s)
    async with asyncio.timeout(HANG_S):
        yield world
        await world.manager.stop()


async def test_all_requests_share_one_load() -> None:
    async with world_of() as world:
        for _ in range(5):
            world.request("small")
        await world.becomes("small", "ready")
        assert world.starts("small") == 1


async def test_two_models_that_wait_share_one_eviction() -> None:
    async with world_of() as world:
        await world.served("large")
        world.request("small")
        world.request("other")
        await world.becomes("other", "ready")
        assert world.entries["small"].state == "ready"
        assert world.closed == ["large"]


async def test_a_model_with_work_goes_when_it_has_none_any_more() -> None:
    async with world_of() as world:
        world.request("large")
        await world.becomes("large", "ready")
        world.request("small")
        await world.becomes("small", "loading")
        assert (world.entries["large"].state, world.closed) == ("ready", [])
        world.end("large")
        await world.becomes("small", "ready")
        assert world.entries["large"].state == "unloaded"


async def test_a_model_that_goes_anyway_is_waited_for() -> None:
    async with world_of() as world:
        await world.served("large")
        world.manager.unload(world.entries["large"])
        assert world.manager.eviction.idle() == []
        world.request("small")
        await world.becomes("small", "ready")
        assert world.starts("large") == 1


async def test_a_fault_of_our_own_leaves_no_model_loading_for_ever() -> None:
    async with world_of() as world:
        world.read_memory = broken_memory
        world.request("small")
        await world.becomes("small", "failed")
        assert world.refused == ["small"]


async def test_after_the_end_nothing_is_loaded() -> None:
    async with world_of() as world:
        await world.manager.stop()
        world.request("small")
        assert world.entries["small"].state == "unloaded"


async def test_a_model_that_is_never_idle_is_given_nothing_new_after_a_while() -> None:
    async with world_of(give_way_s=0.0) as world:
        world.request("large")
        await world.becomes("large", "ready")
        world.request("small")
        await world.becomes("large", "draining")
        assert world.closed == ["large"]
        world.end("large")
        await world.becomes("small", "ready")


async def test_a_model_whose_file_was_replaced_is_loaded_again_once_its_work_is_done() -> None:
    async with world_of() as world:
        await world.served("small")
        world.request("small")
        world.manager.reload(world.entries["small"])
        world.manager.reload(world.entries["small"])
        await world.becomes("small", "draining")
        assert world.starts("small") == 1
        world.end("small")
        await world.becomes("small", "unloaded")
        await world.becomes("small", "ready")
        assert world.starts("small") == 2


async def test_a_model_that_is_unloaded_while_requests_come_is_loaded_again() -> None:
    async with world_of() as world:
        await world.served("large")
        await world.served("small")
        world.request("large")
        await world.becomes("large", "ready")
        assert (world.entries["small"].state, world.starts("large")) == ("unloaded", 2)


async def test_a_model_that_can_never_fit_is_refused_and_none_is_unloaded_for_it() -> None:
    async with world_of() as world:
        await world.served("small")
        world.request("huge")
        await world.becomes("huge", "unloaded")
        assert (world.refused, world.closed) == (["huge"], [])
        assert world.entries["huge"].shortage == {"needed_bytes": 11, "free_bytes": 7}


async def test_a_load_that_is_not_awaited_any_more_is_given_up_before_a_model_is_unloaded_for_it() -> None:
    async with world_of() as world:
        world.request("large")
        await world.becomes("large", "ready")
        world.request("small")
        await asyncio.sleep(0)
        world.end("small")
        await world.becomes("small", "unloaded")
        assert (world.entries["large"].state, world.starts("small")) == ("ready", 0)


async def test_an_unloading_ends_a_load_that_no_request_waits_for() -> None:
    async with world_of() as world:
        small = world.entries["small"]
        world.supervisors[small].slow = True
        world.manager.load(small)
        world.manager.unload(small)
        await world.becomes("small", "unloaded")


async def test_an_unloading_waits_for_the_load_of_requests_and_for_them() -> None:
    async with world_of() as world:
        small = world.entries["small"]
        world.supervisors[small].slow = True
        world.request("small")
        task = world.manager.unload(small)
        assert world.manager.unload(small) is task
        await asyncio.sleep(0)
        assert ("small", "unloaded") not in world.seen
        small.replicas[0].become("ready", ready=READY)
        await world.becomes("small", "draining")
        world.end("small")
        await task
        assert world.seen[-1] == ("small", "unloaded")


async def test_an_engine_that_dies_while_its_model_drains_is_not_waited_for() -> None:
    async with world_of() as world:
        world.request("small")
        await world.becomes("small", "ready")
        world.manager.unload(world.entries["small"])
        await world.becomes("small", "draining")
        world.entries["small"].replicas[0].become("loading")
        await world.becomes("small", "ready")
        assert ("small", "unloaded") in world.seen
        assert world.starts("small") == 2


async def test_the_default_model_is_loaded_whatever_the_memory_and_is_never_idle() -> None:
    async with world_of() as world:
        world.manager.load(world.entries["default"])
        await world.becomes("default", "ready")
        assert world.manager.eviction.idle() == []


async def test_a_model_that_failed_takes_no_memory() -> None:
    async with world_of() as world:
        large = world.entries["large"]
        await world.served("large")
        large.become("failed", reason="a fixed text")
        await world.served("small")
        assert world.closed == []


async def test_an_eviction_is_logged_with_its_figures_and_the_model_that_it_is_for() -> None:
    with capture_logs() as logs:
        async with world_of() as world:
            await world.served("large")
            await world.served("small")
    (evicted,) = [each for each in logs if each["event"] == "model.evicted"]
    assert (evicted["model"], evicted["bytes"], evicted["in_favour_of"]) == ("large", 9, "small")
    fits = [each for each in logs if each["event"] == "model.fits"]
    assert [(each["model"], each["needed_bytes"], each["free_bytes"]) for each in fits] == [
        ("large", 9, 10),
        ("small", 3, 10),
    ]


async def test_owners_of_state_show_their_figures() -> None:
    async with world_of() as world:
        await world.served("large")
        large = world.entries["large"]
        assert repr(large) == f"<ModelEntry large ready, 1/1 replicas up, generation {large.generation}>"
        assert repr(large.replicas[0]) == "<Replica on cpu ready, engine None, 0 restarts>"
        assert repr(world.manager) == (
            "<ModelManager 0 loading, 0 unloading, <ConditionWaiters: 0 waiting>, <MemoryBudget 9/10 bytes, 1 models>>"
        )
