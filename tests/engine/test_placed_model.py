"""The load of a model onto invented devices: what is planned, taken and tried again, and what is left for sequences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from car_base.capacity.kept_file import DeviceParts, LoadOutcome
from car_base.capacity.placement import Placement, cells_room, reserve_of, weights_of
from car_base.ipc.frames import FromEngine, Load, Warned
from car_base.ipc.model_sizes import LayerSizes, ModelSizes, SequenceBytes
from car_engine.llama.devices import read_devices
from car_engine.llama.model import ModelError, OutOfReach
from car_engine.placed_model import PlacedModel
from tests.engine.llama.invented import GIB, SHARED_GPU, InventedDevice, InventedRegistry

MIB = 1 << 20
LAYER = LayerSizes(200 * MIB, 0, SequenceBytes(4096))
# A model of 7 billion weights in 8 bits.
SIZES = ModelSizes((*[LAYER] * 32, LayerSizes(130 * MIB)), 130 * MIB, 100 * MIB, 131_072)
LOAD = Load(
    path="m.gguf",
    curves=None,
    gpu_layers=-1,
    device="gpu",
    sizes=SIZES,
)


@dataclass
class World:
    """Devices whose memory a load takes; it fails as often as `failures` says."""

    registry: InventedRegistry
    failures: int = 0
    opened: list[Placement | None] = field(default_factory=list)
    sent: list[FromEngine] = field(default_factory=list)
    host: int = 64 * GIB
    kept: DeviceParts = field(default_factory=DeviceParts)
    failure: ModelError = field(default_factory=lambda: ModelError("the memory could not be allocated"))

    def keep(self, parts: DeviceParts) -> None:
        self.kept = parts

    def open(self, placement: Placement | None) -> str:
        self.opened.append(placement)
        if len(self.opened) <= self.failures:
            raise self.failure
        if placement is not None:
            for device, size in zip(self.registry.devices, placement.device_bytes, strict=True):
                device.taken += size
        return "loaded"

    def placed(self, **changes: Any) -> PlacedModel[str]:
        read: Callable[[], Any] = lambda: read_devices(self.registry)  # noqa: E731 - a seam
        load = structs.replace(LOAD, **changes)
        return PlacedModel(
            load, self.open, self.sent.append, kept=self.kept, keep=self.keep, read=read, host_free=lambda: self.host
        )


def world(*total_gib: int, failures: int = 0) -> World:
    devices = [InventedDevice(f"CUDA{number}", total=each * GIB) for number, each in enumerate(total_gib)]
    return World(InventedRegistry(devices), failures)


def test_all_layers_go_to_a_device_that_holds_them_and_what_was_taken_is_reported() -> None:
    machine = world(24)
    placed = machine.placed()
    placed.load()
    (use,) = placed.uses(sequences=2, context_tokens=8192)
    assert (use.name, use.slots, use.total) == ("CUDA0", 33, 24 * GIB)
    # Weights, cells of 32 layers, the buffers of a batch and its mask; the invented load took all that is planned.
    assert use.planned == 32 * 200 * MIB + 130 * MIB + 32 * 2 * 8192 * 4096 + 100 * MIB + SequenceBytes(1).mask(8192)
    assert use.taken > use.planned
    assert machine.sent == []


def test_a_load_that_runs_out_of_memory_is_tried_once_with_a_fifth_less_and_reported() -> None:
    machine = world(8, failures=1)
    machine.placed().load()
    first, second = machine.opened
    assert first is not None
    assert second is not None
    assert first.gpu_layers > second.gpu_layers > 0
    assert second.device_bytes[0] <= 0.8 * 8 * GIB
    warned = machine.sent[-1]
    assert isinstance(warned, Warned)
    assert (warned.event, warned.facts["layers"], warned.facts["tried_next"]) == (
        "load.retried",
        first.gpu_layers,
        second.gpu_layers,
    )


def test_a_load_that_runs_out_of_memory_twice_fails_and_leaves_nothing_for_the_next_one() -> None:
    machine = world(8, failures=2)
    with pytest.raises(ModelError, match=r"tried with 33 and [0-9]+ layers on GPUs: set fewer gpu_layers"):
        machine.placed().load()
    assert len(machine.opened) == 2
    assert machine.kept == DeviceParts()


def test_the_next_load_tries_half_way_to_what_failed_and_where_that_fails_what_succeeded_before() -> None:
    machine = world(8, failures=1)
    machine.placed().load()
    free = 8 * GIB
    assert machine.kept == DeviceParts([LoadOutcome(free, 0.8, 1.0)])
    again = World(InventedRegistry([InventedDevice("CUDA0", total=free)]), failures=1, kept=machine.kept)
    again.placed().load()
    assert again.opened[1] == machine.opened[1]
    assert again.kept == DeviceParts([LoadOutcome(free, 0.8, 0.9)])
    third = World(InventedRegistry([InventedDevice("CUDA0", total=free)]), kept=again.kept)
    third.placed().load()
    (situation,) = third.kept.outcomes
    assert (round(situation.part, 9), situation.failed) == (0.85, 0.9)


def test_sequences_get_what_is_left_of_the_part_that_the_load_succeeded_with() -> None:
    machine = world(24, failures=1)
    placed = machine.placed()
    placed.load()
    assert placed.sizes is not None
    assert placed.placement is not None
    for device in machine.registry.devices:
        device.taken = 0
    # The weights are not counted as taken here, only as planned.
    ((weights,), _) = weights_of(placed.sizes, placed.placement)
    assert placed.free_memory.devices[0].free == int(24 * GIB * 0.8) - weights
    machine.registry.devices[0].taken = 20 * GIB
    assert placed.free_memory.devices[0].free == 4 * GIB


def test_replicas_that_load_onto_a_device_together_plan_with_the_same_part_of_it_each() -> None:
    machine = world(24)
    placed = machine.placed(sharing=2)
    placed.load()
    (placement,) = machine.opened
    assert placement is not None
    assert placement.gpu_layers == 33
    assert placement.device_bytes[0] <= 12 * GIB - reserve_of(machine.placed().free_memory.devices[0])
    assert placed.free_memory.devices[0].free <= 12 * GIB - 6 * GIB


def test_a_second_model_on_a_device_takes_what_the_first_one_left() -> None:
    machine = world(14)
    machine.placed(context_tokens=2048).load()
    second = machine.placed()
    second.load()
    assert second.placement is not None
    assert 0 < second.placement.gpu_layers < 33
    assert machine.registry.devices[0].taken <= 14 * GIB - reserve_of(second.free_memory.devices[0])


def test_one_gpu_by_its_number_is_planned_alone() -> None:
    machine = world(4, 24)
    placed = machine.placed(device="gpu1")
    machine.registry.devices[0].taken = 4 * GIB
    with pytest.raises(ValueError, match="zip"):
        placed.load()  # the invented load fills all devices, the plan has one
    (placement,) = machine.opened
    assert placement is not None
    assert placement.slots == (33,)


def test_a_model_that_one_of_two_gpus_holds_is_on_the_one_with_more_room_alone() -> None:
    machine = world(48, 48)
    machine.placed().load()
    second = machine.placed()
    second.load()
    assert [placement.slots for placement in machine.opened if placement] == [(33, 0), (0, 33)]
    assert [placement.alone for placement in machine.opened if placement] == [0, 1]


def test_layers_that_stay_on_the_host_are_reported() -> None:
    machine = world(4)
    machine.placed().load()
    (placement,) = machine.opened
    assert placement is not None
    left = 33 - placement.gpu_layers
    assert machine.sent == [Warned("layers.on_host", {"layers": left, "experts_of": 0, "of": 33})]


def test_a_stated_number_of_layers_wins_over_the_plan() -> None:
    machine = world(24)
    machine.placed(gpu_layers=7).load()
    assert [placement.slots for placement in machine.opened if placement] == [(7,)]


def test_a_model_that_fits_nowhere_is_refused_with_both_figures() -> None:
    machine = world(2)
    machine.host = 2 * GIB
    with pytest.raises(ModelError, match=r"lacks 3280 MiB beside the 3840 MiB that are free \(1792 on CUDA0\)"):
        machine.placed().load()
    assert machine.opened == []


def test_a_model_whose_entry_names_a_gpu_is_refused_where_no_layer_fits_there_and_otherwise_is_on_the_cpu() -> None:
    machine = world(1)
    machine.registry.devices[0].taken = GIB - 400 * MIB
    machine.placed(context_tokens=2048).load()
    assert [placement.gpu_layers for placement in machine.opened if placement] == [0]
    # The output of 130 MiB with the buffers and the mask of a batch in what is free less the reserve.
    lacking, free = 130 + 100 + 2 - 144, 64 * 1024 + 144
    message = rf'lacks {lacking} MiB beside the {free} MiB that are free \(144 on CUDA0\): .* or set device = "auto"'
    with pytest.raises(ModelError, match=message):
        machine.placed(stated=True, context_tokens=2048).load()
    assert len(machine.opened) == 1


def test_a_model_whose_entry_names_a_gpu_is_refused_where_the_second_try_has_no_room_for_a_layer() -> None:
    machine = world(1)
    machine.failures = 1
    machine.registry.devices[0].taken = GIB - 500 * MIB
    message = r"the memory could not be allocated; with 80% of what is free on GPUs, the model lacks 88 MiB"
    with pytest.raises(ModelError, match=message):
        machine.placed(stated=True, context_tokens=2048).load()
    assert [placement.gpu_layers for placement in machine.opened if placement] == [1]
    assert machine.kept == DeviceParts()


@pytest.mark.parametrize("changes", [{"gpu_layers": 0, "device": "cpu"}, {"sizes": None}])
def test_without_a_gpu_in_its_configuration_nothing_is_planned(changes: dict[str, Any]) -> None:
    machine = world(24)
    placed = machine.placed(**changes)
    placed.load()
    assert (machine.opened, placed.uses(1, 2048)) == ([None], [])


def test_sequences_have_the_memory_of_the_device_and_not_that_of_the_host() -> None:
    machine = world(8)
    placed = machine.placed()
    placed.load()
    # The plan counted some sequences; a real load takes their memory only when the context is made.
    assert placed.placement is not None
    assert placed.sizes is not None
    machine.registry.devices[0].taken = 7 * GIB
    assert cells_room(placed.sizes, placed.placement, placed.free_memory, 0.25) < GIB


def test_the_layers_on_the_host_stay_within_the_budget_that_models_share() -> None:
    machine = world(4)
    machine.placed(budget_bytes=8 * GIB).load()
    with pytest.raises(
        ModelError, match=r"the model lacks 1232 MiB beside the 5888 MiB that are free \(3840 on CUDA0\): set"
    ):
        world(4).placed(budget_bytes=2 * GIB).load()
    placed = world(4).placed(budget_bytes=8 * GIB)
    placed.load()
    assert 0 < placed.free_memory.host_free == 8 * GIB - placed.host_weights


def test_a_load_that_fails_for_another_reason_than_memory_is_not_tried_again() -> None:
    machine = world(8, failures=1)
    machine.failure = OutOfReach("the model cannot generate text")
    with pytest.raises(OutOfReach, match=r"the model cannot generate text$"):
        machine.placed().load()
    assert len(machine.opened) == 1


def test_a_gpu_that_is_missing_is_refused_with_those_that_are_there() -> None:
    machine = world(8)
    machine.registry.devices.append(InventedDevice("Metal", kind=SHARED_GPU))
    with pytest.raises(OutOfReach, match=r"gpu1: llama\.cpp finds 1 GPUs, gpu0 \(CUDA0\): set device to one of them"):
        machine.placed(device="gpu1").load()
    assert machine.opened == []
