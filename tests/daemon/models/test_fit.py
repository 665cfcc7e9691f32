"""The models that go so that another one fits: the fewest, and only if that puts more of it on devices."""

from collections.abc import Collection
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from car_base.capacity.placement import FreeMemory
from car_base.host.devices import Device
from car_base.ipc.model_sizes import ModelSizes
from car_daemon.models.memory_budget import GpuReplicas, OnDevices, as_good, fewest, freed
from tests.base.capacity.test_placement import GIB, dense, gpu, machines, models


def on_devices(memory: FreeMemory, sizes: ModelSizes, *places: str) -> list[OnDevices]:
    return GpuReplicas(sizes, places or ("gpu",)).on_devices(memory)


@settings(max_examples=200)
@given(models(), machines(), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.booleans()), max_size=4))
def test_the_models_that_go_put_as_much_on_devices_as_if_all_went_and_none_of_them_goes_for_nothing(
    sizes: ModelSizes, machine: FreeMemory, others: list[tuple[int, int, bool]]
) -> None:
    taken = {str(number): (gib * GIB, where) for number, (gib, where, _) in enumerate(others)}
    evictable = [str(number) for number, (_, _, idle) in enumerate(others) if idle]

    def without(gone: list[str]) -> list[tuple[int, int]]:
        back: dict[str, int] = {}
        for size, where in (taken[name] for name in gone):
            if where < len(machine.devices):
                name = machine.devices[where].name
                back[name] = back.get(name, 0) + size
        return on_devices(freed(machine, back, 0), sizes)

    best = without(evictable)
    chosen = fewest(lambda gone: as_good(without(list(gone)), best), evictable)
    assert chosen is not None
    assert without(chosen) == best
    for fewer in combinations(chosen, max(0, len(chosen) - 1)):
        assert not chosen or without(list(fewer)) != best
    assert chosen == [] or without([]) != best


def test_a_device_gets_back_no_more_than_it_has_and_a_shared_one_gives_to_the_host() -> None:
    own, shared = Device("CUDA0", 2 * GIB, 8 * GIB), Device("Metal", GIB, 8 * GIB, shared=True)
    after = freed(FreeMemory(4 * GIB, (own, shared)), {"CUDA0": 7 * GIB, "Metal": 3 * GIB, "gone": GIB}, GIB)
    assert after == FreeMemory(8 * GIB, (structs.replace(own, free=8 * GIB), structs.replace(shared, free=4 * GIB)))


def test_replicas_on_one_device_share_it_and_replicas_on_others_do_not() -> None:
    machine = FreeMemory(64 * GIB, (gpu(12), gpu(12, "CUDA1")))
    (alone,) = on_devices(machine, dense(), "gpu0")
    assert alone == (33, 0)
    assert on_devices(machine, dense(), "gpu0", "gpu1") == [(33, 0), (33, 0)]
    first, second = on_devices(machine, dense(), "gpu0", "gpu0")
    assert first == second < alone


@pytest.mark.parametrize(("place", "found"), [("gpu", (33, 0)), ("gpu1", (33, 0)), ("gpu0", (0, 0)), ("gpu7", (0, 0))])
def test_a_replica_on_a_gpu_by_its_number_stands_there_alone(place: str, found: tuple[int, int]) -> None:
    machine = FreeMemory(64 * GIB, (gpu(0), gpu(24, "CUDA1")))
    assert on_devices(machine, dense(), place) == [found]


def test_a_model_that_fits_nowhere_stands_below_all_others() -> None:
    (nowhere,) = on_devices(FreeMemory(GIB, (gpu(1),)), dense())
    (on_host,) = on_devices(FreeMemory(64 * GIB, (gpu(1),)), dense())
    assert nowhere < on_host
    assert not as_good([(33, 0), nowhere], [(20, 0), on_host])


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
some_bytes = st.integers(0, 30)


def bytes_of(chosen: Collection[str], models: list[Model]) -> int:
    return sum(each.bytes for each in models if each.name in chosen)


def chosen_for(needed: int, free: int, models: list[Model]) -> list[str] | None:
    """Choose if room is a sum of bytes."""
    by_use = sorted((each for each in models if each.evictable), key=lambda each: (each.used_at, each.name))
    return fewest(lambda gone: free + bytes_of(gone, models) >= needed, [each.name for each in by_use])


@given(some_bytes, some_bytes, residents)
def test_the_chosen_models_are_enough_and_evictable(needed: int, free: int, models: list[Model]) -> None:
    chosen = chosen_for(needed, free, models)
    may_go = [each.name for each in models if each.evictable]
    if chosen is None:
        assert free + bytes_of(may_go, models) < needed
    else:
        assert set(chosen) <= set(may_go)
        assert free + bytes_of(chosen, models) >= needed


@given(some_bytes, some_bytes, residents)
def test_no_model_is_chosen_without_need(needed: int, free: int, models: list[Model]) -> None:
    chosen = chosen_for(needed, free, models) or []
    for fewer in combinations(chosen, max(0, len(chosen) - 1)):
        assert not chosen or free + bytes_of(list(fewer), models) < needed


@given(some_bytes, some_bytes, residents)
def test_models_that_stay_were_used_later_unless_they_are_too_small_to_help(
    needed: int, free: int, models: list[Model]
) -> None:
    chosen = chosen_for(needed, free, models)
    last = max((each.used_at for each in models if each.name in (chosen or [])), default=0.0)
    for each in models:
        if chosen and each.evictable and each.name not in chosen and each.used_at < last:
            instead = [name for name in chosen if name != chosen[-1]]
            assert free + bytes_of([*instead, each.name], models) < needed


def test_the_least_recently_used_goes_first() -> None:
    models = [Model("old", 5, 1.0, True), Model("older", 5, 0.0, True), Model("young", 5, 2.0, True)]
    assert chosen_for(5, 0, models) == ["older"]
    assert chosen_for(10, 0, models) == ["older", "old"]


def test_small_models_stay_where_a_large_one_has_to_go_anyway() -> None:
    assert chosen_for(9, 0, [Model("small", 1, 0.0, True), Model("large", 9, 1.0, True)]) == ["large"]


def test_a_model_that_fits_drives_none_out() -> None:
    assert chosen_for(3, 3, [Model("idle", 9, 0.0, True)]) == []
