"""The memory that models share: how much is left, and which models go so that another one fits."""

from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from car_daemon.host.devices import Device
from car_daemon.host.memory import MemoryReading
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_budget import MemoryBudget, Resident, choose, memory_of
from car_daemon.models.memory_estimate import MemoryEstimate
from car_daemon.models.settings import ModelSettings
from tests.daemon.links import ready_of

READY = ready_of(kv_bytes=70)


class Model(NamedTuple):
    """A model in memory, and its bytes there."""

    name: str
    bytes: int
    used_at: float
    evictable: bool


residents = st.lists(
    st.builds(Model, st.text("abc", min_size=1, max_size=3), st.integers(0, 9), st.floats(0, 9), st.booleans()),
    max_size=5,
    unique_by=lambda each: each.name,
)
sizes = st.integers(0, 30)


def freed(chosen: Collection[str], models: list[Model]) -> int:
    return sum(each.bytes for each in models if each.name in chosen)


def chosen_for(needed: int, free: int, models: list[Model]) -> list[str] | None:
    """Choose where room is a sum of bytes."""
    listed = [Resident(each.name, each.used_at, each.evictable) for each in models]
    return choose(lambda gone: free + freed(gone, models) >= needed, listed)


@given(sizes, sizes, residents)
def test_the_chosen_models_are_enough_and_evictable(needed: int, free: int, models: list[Model]) -> None:
    chosen = chosen_for(needed, free, models)
    may_go = [each.name for each in models if each.evictable]
    if chosen is None:
        assert free + freed(may_go, models) < needed
    else:
        assert set(chosen) <= set(may_go)
        assert free + freed(chosen, models) >= needed


@given(sizes, sizes, residents)
def test_no_model_is_chosen_without_need(needed: int, free: int, models: list[Model]) -> None:
    chosen = chosen_for(needed, free, models) or []
    for fewer in combinations(chosen, max(0, len(chosen) - 1)):
        assert not chosen or free + freed(list(fewer), models) < needed


@given(sizes, sizes, residents)
def test_models_that_stay_were_used_later_unless_they_are_too_small_to_help(
    needed: int, free: int, models: list[Model]
) -> None:
    chosen = chosen_for(needed, free, models)
    last = max((each.used_at for each in models if each.name in (chosen or [])), default=0.0)
    for each in models:
        if chosen and each.evictable and each.name not in chosen and each.used_at < last:
            instead = [name for name in chosen if name != chosen[-1]]
            assert free + freed([*instead, each.name], models) < needed


@given(sizes, sizes, residents)
def test_the_order_of_the_models_means_nothing(needed: int, free: int, models: list[Model]) -> None:
    assert chosen_for(needed, free, models) == chosen_for(needed, free, models[::-1])


def test_the_least_recently_used_goes_first() -> None:
    models = [Model("old", 5, 1.0, True), Model("older", 5, 0.0, True), Model("young", 5, 2.0, True)]
    assert chosen_for(5, 0, models) == ["older"]
    assert chosen_for(10, 0, models) == ["older", "old"]


def test_small_models_stay_where_a_large_one_has_to_go_anyway() -> None:
    assert chosen_for(9, 0, [Model("small", 1, 0.0, True), Model("large", 9, 1.0, True)]) == ["large"]


def test_a_model_that_fits_drives_none_out() -> None:
    assert chosen_for(3, 3, [Model("idle", 9, 0.0, True)]) == []


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
