"""The memory that models share: how much is left."""

from pathlib import Path

from msgspec import structs

from car_base.host.devices import Device
from car_base.host.memory import MemoryReading
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_budget import MemoryBudget, memory_of
from car_daemon.models.memory_estimate import MemoryEstimate
from car_daemon.models.settings import ModelSettings
from tests.daemon.links import ready_of

READY = ready_of(kv_bytes=70)


def entry(name: str, weights: int) -> ModelEntry:
    one = ModelEntry(name, ModelSettings(Path(name)), default=False, on_change=lambda _: None)
    one.estimate = MemoryEstimate(weights, 10, 5)
    return one


async def no_devices() -> list[Device]:
    return []


def budget_of(most: int | None, available: int) -> MemoryBudget:
    return MemoryBudget(most, lambda: MemoryReading(10_000, available), no_devices)


def test_without_a_budget_what_is_free_counts_less_what_others_are_about_to_take() -> None:
    shared, coming = budget_of(None, 1000), entry("a", 100)
    assert shared.free() == 1000
    shared.enter(coming)
    assert shared.free() == 1000 - 115
    coming.replicas[0].become("ready", ready=READY)
    assert shared.free() == 1000


def test_a_budget_counts_what_all_take_and_is_never_more_than_what_is_free() -> None:
    shared, one = budget_of(300, 1000), entry("a", 100)
    shared.enter(one)
    assert shared.free() == 300 - 115
    one.replicas[0].become("ready", ready=READY)
    assert (memory_of(one), shared.free()) == (175, 125)
    shared.leave(one)
    assert shared.free() == 300
    assert budget_of(300, 200).free() == 200


def test_what_a_plan_on_gpus_leaves_on_the_host_counts_there_once_it_is_loaded() -> None:
    shared, one = budget_of(300, 1000), entry("a", 0)
    one.configured = ModelSettings(Path("a"), gpu_layers=-1, devices=("gpu",))
    one.renew()
    shared.enter(one)
    assert (memory_of(one), shared.free()) == (15, 285)
    one.replicas[0].become("ready", ready=structs.replace(READY, host_weights=40))
    assert (memory_of(one), shared.free()) == (55, 245)


def test_the_budget_less_weights_is_what_an_engine_may_take_for_its_cache() -> None:
    shared, one, other = budget_of(300, 1000), entry("a", 100), entry("b", 50)
    shared.enter(one)
    one.replicas[0].become("ready", ready=READY)
    shared.enter(other)
    assert (one.budget_bytes, other.budget_bytes) == (195, 300 - 175 - 55)
    unlimited = budget_of(None, 1000)
    unlimited.enter(one)
    assert one.budget_bytes is None


def test_what_a_model_has_is_free_for_itself() -> None:
    shared, one, other = budget_of(300, 1000), entry("a", 100), entry("b", 50)
    shared.enter(one)
    one.replicas[0].become("ready", ready=READY)
    assert (shared.free_for(one), shared.free_for(other)) == (300, 125)
