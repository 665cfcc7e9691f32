"""The room for a model on devices that others share: models go only where that puts more of it there."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from car_daemon.capacity.device_room import Demand, as_good, freed, standings
from car_daemon.capacity.placement import FreeMemory
from car_daemon.host.devices import Device
from car_daemon.ipc.model_sizes import ModelSizes
from car_daemon.models.memory_budget import Resident, choose
from tests.daemon.capacity.test_placement import GIB, dense, gpu, machines, models


def demand(sizes: ModelSizes, *places: str) -> Demand:
    return Demand(sizes, places or ("gpu",))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(models(), machines(), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.booleans()), max_size=4))
def test_the_models_that_go_put_as_much_on_devices_as_if_all_went_and_none_of_them_goes_for_nothing(
    sizes: ModelSizes, machine: FreeMemory, others: list[tuple[int, int, bool]]
) -> None:
    taken = {str(number): (gib * GIB, where) for number, (gib, where, _) in enumerate(others)}
    residents = [Resident(str(number), number, idle) for number, (_, _, idle) in enumerate(others)]

    def without(gone: list[str]) -> list[tuple[int, int]]:
        back: dict[str, int] = {}
        for size, where in (taken[name] for name in gone):
            if where < len(machine.devices):
                name = machine.devices[where].name
                back[name] = back.get(name, 0) + size
        return standings(demand(sizes), freed(machine, back, 0))

    best = without([each.name for each in residents if each.evictable])
    chosen = choose(lambda gone: as_good(without(list(gone)), best), residents)
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
    (alone,) = standings(demand(dense(), "gpu0"), machine)
    assert alone == (33, 0)
    assert standings(demand(dense(), "gpu0", "gpu1"), machine) == [(33, 0), (33, 0)]
    first, second = standings(demand(dense(), "gpu0", "gpu0"), machine)
    assert first == second < alone


@pytest.mark.parametrize(("place", "found"), [("gpu", (33, 0)), ("gpu1", (33, 0)), ("gpu0", (0, 0)), ("gpu7", (0, 0))])
def test_a_replica_on_a_gpu_by_its_number_stands_there_alone(place: str, found: tuple[int, int]) -> None:
    machine = FreeMemory(64 * GIB, (gpu(0), gpu(24, "CUDA1")))
    assert standings(demand(dense(), place), machine) == [found]


def test_a_model_that_fits_nowhere_stands_below_all_others() -> None:
    (nowhere,) = standings(demand(dense()), FreeMemory(GIB, (gpu(1),)))
    (on_host,) = standings(demand(dense()), FreeMemory(64 * GIB, (gpu(1),)))
    assert nowhere < on_host
    assert not as_good([(33, 0), nowhere], [(20, 0), on_host])
