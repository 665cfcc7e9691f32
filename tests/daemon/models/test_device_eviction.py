"""Models that share a GPU: those that go for another one, and those that stay because it would not help."""

import asyncio

import pytest
from msgspec import structs

from car_base.host.devices import Device
from car_base.host.memory import MemoryReading
from car_base.ipc.frames import DeviceUse
from car_base.ipc.model_sizes import LayerSizes, ModelSizes, SequenceBytes
from car_daemon.models.memory_budget import memory_of
from tests.daemon.captured_log import capture_logs
from tests.daemon.models.test_manager import READY, World, world_of

GIB = 1 << 30
MIB = 1 << 20
LAYERS = 4


def put_on_gpu(world: World, **gib: float) -> None:
    """Have models of these sizes be on the GPUs, of which they take that much."""
    for name, size in gib.items():
        entry, supervisor = world.entries[name], world.supervisors[world.entries[name]]
        entry.configured = structs.replace(entry.configured, devices=("gpu",), gpu_layers=-1)
        entry.renew()
        taken = int(size * GIB)
        layer = LayerSizes(taken // LAYERS, 0, SequenceBytes(1))
        world.sizes[name] = ModelSizes((layer,) * LAYERS, 0, MIB, 2048)
        use = DeviceUse("CUDA0", LAYERS, taken, taken, 0, 8 * GIB)
        supervisor.ready = structs.replace(READY, device="gpu", devices=[use])


def plug_in(world: World, *gib: float, shared: bool = False) -> None:
    """Give the machine GPUs that are free, and a host with room for models that are not on them."""
    sizes = enumerate(int(each * GIB) for each in gib)
    world.devices = [Device(f"CUDA{number}", size, size, shared) for number, size in sizes]
    world.read_memory = lambda: MemoryReading(64 * GIB, 64 * GIB)
    world.manager.budget.budget_bytes = None


async def begin_load_onto_gpu(world: World) -> None:
    """Begin a load of 7 GiB onto a GPU of 8, on a host of 16; it does not end by itself."""
    plug_in(world, 8)
    put_on_gpu(world, large=7)
    world.read_memory = lambda: MemoryReading(16 * GIB, 16 * GIB)
    on_gpu = world.supervisors[world.entries["large"]]
    on_gpu.slow = True
    world.request("large")
    await on_gpu.started.wait()


async def test_the_least_recently_used_idle_model_leaves_a_gpu_that_is_too_full_for_another_one() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, small=3, other=3, large=4)
        await world.served("small")
        await world.served("other")
        with capture_logs() as logs:
            await world.served("large")
        assert world.closed == ["small"]
        (evicted,) = [each for each in logs if each["event"] == "model.evicted"]
        assert (evicted["model"], evicted["device_bytes"]) == ("small", 3 * GIB)


async def test_a_model_that_fits_beside_the_others_drives_none_out() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, small=3, other=3)
        await world.served("small")
        assert world.searches == 0
        await world.served("other")
        assert (world.closed, world.searches) == ([], 1)


async def test_models_stay_where_unloading_them_would_put_no_more_on_a_gpu() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, small=3, huge=4 * 20)
        await world.served("small")
        await world.served("huge")
        assert world.closed == []


async def test_a_model_on_another_gpu_stays() -> None:
    async with world_of() as world:
        plug_in(world, 8, 8)
        put_on_gpu(world, small=3, large=7)
        await world.served("small")
        large = world.entries["large"]
        large.configured = structs.replace(large.configured, devices=("gpu1",))
        await world.served("large")
        assert world.closed == []
        large.configured = structs.replace(large.configured, devices=("gpu0",))
        await world.manager.unload(large)
        await world.served("large")
        assert world.closed == ["large", "small"]


async def test_a_pinned_model_stays_on_its_gpu_and_a_busy_one_until_its_work_is_done() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, small=3, other=3, large=4)
        pinned = world.entries["small"]
        pinned.configured = structs.replace(pinned.configured, pinned=True)
        await world.served("small")
        world.request("other")
        await world.becomes("other", "ready")
        world.request("large")
        await world.becomes("large", "loading")
        assert world.closed == []
        world.end("other")
        await world.becomes("large", "ready")
        assert world.closed == ["other"]


async def test_a_gpu_that_shares_the_hosts_memory_gets_a_models_part_back_on_both() -> None:
    async with world_of() as world:
        plug_in(world, 8, shared=True)
        put_on_gpu(world, small=5, large=6)
        await world.served("small")
        world.read_memory = lambda: MemoryReading(
            8 * GIB, 3 * GIB if world.entries["small"].state == "ready" else 8 * GIB
        )
        await world.served("large")
        assert world.closed == ["small"]


async def test_an_idle_model_on_the_host_goes_for_the_layers_that_a_gpu_has_no_room_for() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, large=16)
        world.bytes["other"] = 10 * GIB
        world.read_memory = lambda: MemoryReading(
            16 * GIB, 6 * GIB if world.entries["other"].state == "ready" else 16 * GIB
        )
        await world.served("other")
        await world.served("large")
        assert (world.closed, world.searches) == (["other"], 1)


async def test_layers_that_stay_on_the_host_count_from_the_begin_of_the_load() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, large=16)
        world.read_memory = lambda: MemoryReading(16 * GIB, 15 * GIB)
        world.supervisors[world.entries["large"]].slow = True
        world.request("large")
        await world.supervisors[world.entries["large"]].started.wait()
        # One of four layers of 4 GiB is on the GPU, beside its reserve; its output is the last one.
        assert world.manager.budget.free() == 15 * GIB - 3 * 4 * GIB
        loaded = structs.replace(READY, device="gpu", host_weights=11 * GIB)
        world.entries["large"].replicas[0].become("ready", ready=loaded)
        assert memory_of(world.entries["large"]) == 11 * GIB


async def test_the_default_model_that_was_unloaded_gets_its_gpu_back_from_idle_models() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, default=5, other=5)
        default = world.entries["default"]
        await world.served("other")
        world.manager.load(default)
        await world.becomes("default", "ready")
        assert world.closed == ["other"]


async def test_loads_onto_gpus_come_one_after_the_other_and_hold_up_no_load_onto_the_cpu() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, small=3, large=3)
        slow = world.supervisors[world.entries["small"]]
        slow.slow = True
        world.request("small")
        world.request("large")
        await world.served("other")
        assert (slow.starts, world.starts("large")) == (1, 0)
        world.entries["small"].replicas[0].become("ready", ready=slow.ready)
        await world.becomes("large", "ready")


async def test_a_load_onto_a_gpu_that_fails_lets_the_next_one_begin() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, small=3, large=3)
        failing = world.supervisors[world.entries["small"]]
        failing.slow = True
        world.request("small")
        world.request("large")
        await failing.started.wait()
        world.entries["small"].replicas[0].become("failed", reason="the file cannot be read")
        await world.becomes("large", "ready")


async def test_a_model_on_the_host_waits_for_a_load_onto_gpus_that_may_leave_it_no_room() -> None:
    async with world_of() as world:
        world.bytes.update(small=8 * GIB, other=10 * GIB)
        await begin_load_onto_gpu(world)
        # The host holds the small one, and 7 GiB of layers beside it; the other one only where these are on the GPU.
        await world.served("small")
        await world.manager.unload(world.entries["small"])
        world.request("other")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.supervisors[world.entries["other"]].started.wait(), 0.1)
        loaded = structs.replace(READY, device="gpu", host_weights=GIB)
        world.entries["large"].replicas[0].become("ready", ready=loaded)
        await world.becomes("other", "ready")
        assert world.refused == []


async def test_a_model_that_waits_for_a_load_onto_gpus_is_not_loaded_once_nothing_awaits_it() -> None:
    async with world_of() as world:
        world.bytes["other"] = 10 * GIB
        await begin_load_onto_gpu(world)
        world.request("other")
        await world.becomes("other", "loading")
        world.end("other")
        await world.becomes("other", "unloaded")
        assert world.starts("other") == 0


async def test_models_that_load_at_the_same_time_have_bounds_on_the_memory_of_their_sequences() -> None:
    async with world_of() as world:
        plug_in(world, 8)
        put_on_gpu(world, large=7)
        world.read_memory = lambda: MemoryReading(64 * GIB, 32 * GIB)
        world.bytes["other"] = 10 * GIB
        on_host = world.supervisors[world.entries["other"]]
        on_host.slow = True
        world.request("other")
        await on_host.started.wait()
        assert world.entries["other"].budget_bytes is None
        await world.served("large")
        assert world.entries["large"].budget_bytes == 22 * GIB
