"""The planner over 500 invented machines and headers: never over the free memory, monotone, honest refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from car_base.capacity.capacity import LEAST_CONTEXT, CapacityInputs, declare
from car_base.capacity.curve import Curve
from car_base.capacity.placement import (
    FreeMemory,
    NoRoom,
    Placement,
    cells_room,
    device_bytes,
    plan,
    reserve_of,
    usable,
    weights_of,
)
from car_base.host.devices import Device
from car_base.ipc.model_sizes import LayerSizes, ModelSizes, SequenceBytes, whole_cells
from car_base.ipc.types import KvType
from car_daemon.gguf.hyperparameters import Attention
from car_daemon.gguf.validation import HeaderFacts
from car_daemon.models.memory_estimate import sizes_of
from car_daemon.models.settings import ModelSettings

GIB = 1 << 30
MIB = 1 << 20


def dense(layers: int = 32, layer_mib: int = 200, **more: Any) -> ModelSizes:
    """Return the sizes of a dense model of 7 billion weights in 8 bits."""
    slot = LayerSizes(layer_mib * MIB, cells=SequenceBytes(4096))
    sizes: dict[str, Any] = {"embedding": 130 * MIB, "buffers": 100 * MIB, "trained_context": 131_072, **more}
    return ModelSizes(slots=(*[slot] * layers, LayerSizes(130 * MIB)), **sizes)


def experts(layers: int = 32) -> ModelSizes:
    """Return the sizes of a model most of whose weights are experts."""
    slot = LayerSizes(1000 * MIB, experts=900 * MIB, cells=SequenceBytes(2048))
    return structs.replace(dense(), slots=(*[slot] * layers, LayerSizes(130 * MIB)))


def gpu(free_gib: float, name: str = "CUDA0", **more: Any) -> Device:
    return Device(name, int(free_gib * GIB), int(free_gib * GIB), **more)


def planned(sizes: ModelSizes, *devices: Device, host_gib: int = 64, **more: Any) -> Placement:
    found = plan(sizes, FreeMemory(host_gib * GIB, devices), **more)
    assert isinstance(found, Placement)
    return found


def test_a_device_with_enough_memory_takes_everything() -> None:
    found = planned(dense(), gpu(24))
    assert (found.slots, found.host_experts) == ((33,), ())
    assert found.tokens > 100_000


def test_64_gb_of_the_host_do_not_make_8_gb_of_a_gpu_larger() -> None:
    found = planned(dense(), gpu(8))
    assert found.slots == (33,)
    assert found.device_bytes[0] <= 8 * GIB - reserve_of(gpu(8))
    assert LEAST_CONTEXT <= found.tokens < 10_000


def test_layers_that_do_not_fit_stay_on_the_host() -> None:
    found = planned(dense(), gpu(4))
    assert 10 <= found.gpu_layers <= 20
    assert found.host_bytes > 2 * GIB


def test_experts_go_to_the_host_before_whole_layers() -> None:
    found = planned(experts(), gpu(12))
    assert found.gpu_layers == 33
    assert 20 <= len(found.host_experts) < 32
    assert found.host_experts == tuple(range(len(found.host_experts)))


def test_experts_of_layers_that_are_on_the_host_are_counted_with_these_layers_alone() -> None:
    found = planned(experts(), gpu(3))
    assert 20 <= found.gpu_layers < 33
    assert found.host_experts == tuple(range(33 - found.gpu_layers, 32))
    split = planned(experts(), gpu(2), gpu(1.5, "CUDA1"))
    assert split.host_experts == tuple(range(33 - split.gpu_layers, 32))
    assert min(split.slots) > 0
    on_host = planned(experts(), gpu(0.2))
    assert (on_host.gpu_layers, on_host.host_experts) == (0, ())


def test_unequal_devices_take_unequal_parts() -> None:
    found = planned(dense(), gpu(6), gpu(3, "CUDA1"))
    assert found.gpu_layers == 33
    assert found.slots[0] > found.slots[1] > 0


def test_a_device_that_holds_the_model_with_its_whole_context_holds_it_alone_and_the_roomiest_is_taken() -> None:
    found = planned(dense(), gpu(6), gpu(40, "CUDA1"), gpu(48, "CUDA2"))
    assert (found.slots, found.alone, found.tokens) == ((0, 0, 33), 2, 131_072)
    assert planned(dense(), gpu(48), gpu(48, "CUDA1")).slots == (33, 0)
    # 16 GiB of cells beside 6.5 GiB of weights are too much for one of these.
    split = planned(dense(), gpu(16), gpu(16, "CUDA1"))
    assert (split.gpu_layers, split.alone) == (33, None)
    # Eight sequences of a stated context are less, and so is one where one is stated.
    assert planned(dense(), gpu(16), gpu(16, "CUDA1"), context_tokens=4096).slots == (33, 0)
    assert planned(dense(), gpu(16), gpu(16, "CUDA1"), context_tokens=32_768).alone is None
    assert planned(dense(), gpu(16), gpu(16, "CUDA1"), context_tokens=32_768, sequences=1).slots == (33, 0)


def test_slots_are_in_proportion_to_what_is_free_where_several_devices_have_room_to_spare() -> None:
    # 6.5 GiB of weights and 16 GiB of cells: the first device would hold nearly all of it, with nothing to spare.
    found = planned(dense(), gpu(22), gpu(11, "CUDA1"))
    assert (found.slots, found.tokens) == ((22, 11), 131_072)
    parts = [
        taken / (each - reserve)
        for taken, each, reserve in zip(
            found.device_bytes, (22 * GIB, 11 * GIB), map(reserve_of, (gpu(22), gpu(11))), strict=True
        )
    ]
    assert max(parts) - min(parts) < 0.1
    assert planned(dense(), gpu(16), gpu(16, "CUDA1")).slots in ((17, 16), (16, 17))


def test_a_model_of_a_short_context_is_alone_where_eight_sequences_fit() -> None:
    short = dense(trained_context=2048)
    assert planned(short, gpu(10), gpu(10, "CUDA1")).slots == (33, 0)
    assert planned(short, gpu(10), gpu(10, "CUDA1")).tokens == 8 * 2048


def test_a_stated_number_of_slots_wins() -> None:
    assert planned(dense(), gpu(24), slots=5).slots == (5,)
    assert isinstance(plan(dense(), FreeMemory(64 * GIB, (gpu(1),)), slots=33), NoRoom)


def test_a_model_that_fits_nowhere_is_refused_with_both_figures() -> None:
    found = plan(dense(), FreeMemory(2 * GIB, (gpu(1),)))
    assert isinstance(found, NoRoom)
    assert found.needed > found.free > 2 * GIB


def test_a_refusal_names_more_than_is_free_also_where_free_memory_is_in_the_wrong_place() -> None:
    # One layer of 10 GiB fits neither the host nor the GPU, which have 13 GiB together.
    found = plan(dense(layers=1, layer_mib=10_240), FreeMemory(8 * GIB, (gpu(5),)))
    assert isinstance(found, NoRoom)
    assert found.needed > found.free > 12 * GIB
    stated = plan(dense(), FreeMemory(64 * GIB, (gpu(4),)), slots=33)
    assert isinstance(stated, NoRoom)
    assert 2 * GIB < stated.needed - stated.free < 4 * GIB


def test_memory_that_is_shared_counts_once() -> None:
    assert isinstance(plan(dense(), FreeMemory(5 * GIB, (gpu(16, shared=True),))), NoRoom)
    assert planned(dense(), gpu(16, shared=True), host_gib=16).gpu_layers == 33


def test_a_device_that_shares_the_hosts_memory_is_used_where_there_is_no_other() -> None:
    own, shared = gpu(8), gpu(16, "iGPU", shared=True)
    assert usable([shared, own]) == (own,)
    assert usable([shared]) == (shared,)
    assert usable([]) == ()


def headers(layers: list[tuple[int, int]], kv_heads: tuple[int, ...], **more: Any) -> HeaderFacts:
    """Return the facts of a header by the bytes of its layers, the experts' among them, and their KV heads."""
    facts: dict[str, Any] = {"states": 0, "embedding": 130 * MIB, "context": 8192, **more}
    return HeaderFacts(
        architecture="any",
        tensor_bytes=sum(size for size, _ in layers) + 2 * facts["embedding"],
        parameters=1,
        file_type=None,
        vocabulary=facts.get("vocabulary", 32_000),
        context_length=facts["context"],
        embedding_length=4096,
        block_count=len(layers),
        attention=Attention(kv_heads, 128, 128),
        state_bytes=facts["states"],
        most_tokens=None,
        parts=1,
        warnings=(),
        layers=tuple((number, *sizes) for number, sizes in enumerate(layers)),
        embedding_bytes=facts["embedding"],
        masks=facts.get("masks", 1),
        memory="attention",
        unused_layers=0,
    )


@st.composite
def dense_headers(draw: st.DrawFn) -> HeaderFacts:
    """Draw models of equal layers."""
    layers, size = draw(st.integers(1, 80)), draw(st.integers(1, 2000)) * MIB
    heads = draw(st.sampled_from([1, 8, 32]))
    return headers([(size, 0)] * layers, (heads,) * layers, **draw(surroundings()))


@st.composite
def expert_headers(draw: st.DrawFn) -> HeaderFacts:
    """Draw models most of whose weights are experts, after some layers without any."""
    plain, layers = draw(st.integers(0, 3)), draw(st.integers(1, 60))
    size = draw(st.integers(10, 8000)) * MIB
    experts = size * draw(st.integers(50, 98)) // 100
    blocks = [(size - experts, 0)] * plain + [(size, experts)] * layers
    return headers(blocks, (draw(st.sampled_from([1, 4, 8])),) * len(blocks), **draw(surroundings()))


@st.composite
def hybrid_headers(draw: st.DrawFn) -> HeaderFacts:
    """Draw models that keep states, and attend in every fourth or eighth layer or in none."""
    layers, size = draw(st.integers(1, 64)), draw(st.integers(1, 1000)) * MIB
    experts = draw(st.sampled_from([0, 0, size // 2]))
    every = draw(st.sampled_from([4, 8, 1000]))
    heads = tuple(8 * ((number + 1) % every == 0) for number in range(layers))
    states = layers * draw(st.integers(1, 8)) * MIB
    return headers([(size, experts)] * layers, heads, states=states, **draw(surroundings()))


@st.composite
def sliding_headers(draw: st.DrawFn) -> HeaderFacts:
    """Draw models whose layers with a window are of other sizes, and have other KV heads, than every sixth layer."""
    layers, size = draw(st.integers(1, 62)), draw(st.integers(2, 1000)) * MIB
    narrow, wide = draw(st.sampled_from([(16, 2), (8, 4), (4, 1)]))
    whole = [(number + 1) % 6 == 0 for number in range(layers)]
    blocks = [(size if each else size * 4 // 5, 0) for each in whole]
    return headers(blocks, tuple(wide if each else narrow for each in whole), masks=2, **draw(surroundings()))


@st.composite
def embedding_headers(draw: st.DrawFn) -> HeaderFacts:
    """Draw small models that only embed, often trained for less than 2,048 tokens and without an output."""
    layers = draw(st.integers(1, 30))
    facts = headers([(draw(st.integers(1, 200)) * MIB, 0)] * layers, (12,) * layers, **draw(surroundings()))
    return replace(facts, context_length=draw(st.sampled_from([128, 512, 8192])))


@st.composite
def surroundings(draw: st.DrawFn) -> dict[str, int]:
    """Draw the table of tokens, and the context that a model was trained for."""
    vocabulary = draw(st.sampled_from([32_000, 151_936, 262_144]))
    embedding = draw(st.integers(1, 2000)) * MIB
    return {
        "vocabulary": vocabulary,
        "embedding": embedding,
        "context": draw(st.sampled_from([2048, 8192, 131_072, 1 << 20])),
    }


KINDS = [dense_headers(), expert_headers(), hybrid_headers(), sliding_headers(), embedding_headers()]


@st.composite
def models(draw: st.DrawFn) -> ModelSizes:
    """Draw one kind of model after the other, in each type of the KV cache."""
    facts, kv_type = draw(st.one_of(KINDS)), draw(st.sampled_from(get_args(KvType)))
    return sizes_of([facts], ModelSettings(Path("m.gguf"), kv_type=kv_type))


@st.composite
def machines(draw: st.DrawFn) -> FreeMemory:
    """Draw hosts of 4 to 512 GB with up to four unequal devices, or one that shares the host's memory."""
    host = draw(st.integers(4, 512)) * GIB
    if draw(st.integers(0, 5)) == 0:
        return FreeMemory(host, (Device("Metal", host * draw(st.integers(1, 100)) // 100, host, shared=True),))
    devices = []
    for number in range(draw(st.integers(0, 4))):
        total = draw(st.integers(1, 96)) * GIB
        # In percent, because most draws of a large range are small, and nearly all devices would be full.
        devices.append(Device(f"CUDA{number}", total * draw(st.integers(0, 100)) // 100, total))
    return FreeMemory(host, tuple(devices))


def larger(machine: FreeMemory, more: int) -> FreeMemory:
    """Return a machine with so many bytes more on the host and on its last device."""
    devices = [structs.replace(each, free=each.free + more) for each in machine.devices[-1:]]
    return FreeMemory(machine.host_free + more, (*machine.devices[:-1], *devices))


@settings(max_examples=500)
@given(models(), machines())
def test_no_plan_takes_more_than_is_free_and_each_has_room_for_a_sequence(
    sizes: ModelSizes, machine: FreeMemory
) -> None:
    found = plan(sizes, machine)
    if isinstance(found, NoRoom):
        assert found.needed > found.free >= 0
        assert isinstance(plan(sizes, larger(machine, found.needed - found.free)), Placement)
        return
    trained = whole_cells(sizes.trained_context)
    assert min(trained, LEAST_CONTEXT) <= found.tokens <= 8 * trained
    for taken, device in zip(found.device_bytes, machine.devices, strict=True):
        assert taken <= max(0, device.free - reserve_of(device))
    shared = sum(taken for taken, each in zip(found.device_bytes, machine.devices, strict=True) if each.shared)
    assert found.host_bytes + shared <= machine.host_free
    assert all(len(sizes.slots) - found.gpu_layers <= number < len(sizes.slots) for number in found.host_experts)
    # Everything is somewhere.
    weights = sizes.embedding + sum(slot.weights + slot.cells.of(found.tokens) for slot in sizes.slots)
    assert found.host_bytes + sum(found.device_bytes) >= weights


@settings(max_examples=500)
@given(models(), machines(), st.integers(0, 64), st.integers(0, 3))
def test_more_memory_never_gives_less(sizes: ModelSizes, machine: FreeMemory, more_gib: int, where: int) -> None:
    before = plan(sizes, machine)
    assume(isinstance(before, Placement))
    assert isinstance(before, Placement)
    devices = list(machine.devices)
    if where < len(devices):
        devices[where] = structs.replace(devices[where], free=devices[where].free + more_gib * GIB)
        grown = structs.replace(machine, devices=tuple(devices))
    else:
        grown = structs.replace(machine, host_free=machine.host_free + more_gib * GIB)
    after = plan(sizes, grown)
    assert isinstance(after, Placement)
    rank = [(each.gpu_layers, -len(each.host_experts), each.tokens) for each in (before, after)]
    assert rank[1] >= rank[0]


@settings(max_examples=500)
@given(models(), machines())
def test_a_refusal_means_that_the_host_alone_does_not_hold_the_model(sizes: ModelSizes, machine: FreeMemory) -> None:
    found = plan(sizes, machine)
    alone = plan(sizes, FreeMemory(machine.host_free))
    if isinstance(found, NoRoom):
        assert isinstance(alone, NoRoom)
        assert alone.needed > machine.host_free


def test_the_bytes_of_a_plan_are_its_weights_its_sequences_and_a_batchs_buffers_on_each_device_that_is_used() -> None:
    sizes, placement = experts(), Placement((0, 33), (0, 1), 4096, 4096, (0, 0), 0)
    on_devices, host = weights_of(sizes, placement)
    assert on_devices == [0, (32 * 1000 - 2 * 900 + 130) * MIB]
    assert host == (130 + 2 * 900) * MIB
    cells = 3 * 32 * 2048 * 1024
    batch = sizes.buffers + SequenceBytes(1).mask(1024)
    assert device_bytes(sizes, placement, 3, 1024) == [0, on_devices[1] + cells + batch]


def test_the_second_mask_of_layers_with_a_sliding_window_leaves_less_room_for_cells() -> None:
    one, two = dense(), dense(masks=2)
    another = 512 * 2 * 131_072
    whole: dict[str, Any] = {"context_tokens": 131_072, "sequences": 1}
    found = planned(one, gpu(24), **whole)
    assert device_bytes(two, found, 1, 131_072) == [device_bytes(one, found, 1, 131_072)[0] + another]
    # So much memory holds all layers and a sequence with one mask alone.
    tight = Device("CUDA0", found.device_bytes[0] + reserve_of(gpu(24)), 24 * GIB)
    assert planned(one, tight, **whole) == found
    assert planned(two, tight, **whole).gpu_layers < found.gpu_layers
    assert planned(two, gpu(20)).tokens < planned(one, gpu(20)).tokens


@settings(max_examples=200)
@given(models(), machines())
def test_weights_on_devices_and_host_add_up_and_a_plan_takes_no_more_than_it_says(
    sizes: ModelSizes, machine: FreeMemory
) -> None:
    found = plan(sizes, machine)
    assume(isinstance(found, Placement))
    assert isinstance(found, Placement)
    on_devices, host = weights_of(sizes, found)
    assert sum(on_devices) + host == sizes.embedding + sum(slot.weights for slot in sizes.slots)
    one = device_bytes(sizes, found, 1, min(found.tokens, sizes.trained_context))
    assert all(taken <= said for taken, said in zip(one, found.device_bytes, strict=True))


FIGURES: list[dict[str, int]] = [
    {},
    {"sequences": 16},
    {"context_tokens": 4096},
    {"context_tokens": 4096, "sequences": 4},
    # Cells come in blocks, and a stated context may be longer than the one that a model was trained for.
    {"context_tokens": 1},
    {"context_tokens": 300_000},
]


def little_host() -> tuple[ModelSizes, FreeMemory]:
    """Return experts for which the host has just room, so that the plan has fewer tokens than their context."""
    slot = LayerSizes(3389 * MIB, experts=1694 * MIB, cells=SequenceBytes(512))
    sizes = ModelSizes((*[slot] * 12, LayerSizes(321 * MIB)), 321 * MIB, 126 * MIB, 1 << 20)
    return sizes, FreeMemory(43_008 * MIB, (gpu(4),))


@settings(max_examples=500)
@example(*little_host(), {})
@given(models(), machines(), st.sampled_from(FIGURES))
def test_no_device_lacks_memory_for_the_sequences_that_are_declared_after_the_weights_were_loaded(
    sizes: ModelSizes, machine: FreeMemory, figures: dict[str, int]
) -> None:
    found = plan(sizes, machine, **figures)
    assume(isinstance(found, Placement) and found.gpu_layers)
    assert isinstance(found, Placement)
    on_devices, _ = weights_of(sizes, found)
    left = [
        structs.replace(each, free=each.free - size) for each, size in zip(machine.devices, on_devices, strict=True)
    ]
    cells = SequenceBytes.together(slot.cells for slot in sizes.slots)
    need = CapacityInputs(
        sequence_bytes=structs.replace(cells, masks=sizes.masks),
        free_bytes=cells_room(sizes, found, FreeMemory(machine.host_free, tuple(left)), 0.25),
        total_bytes=machine.host_free,
        trained_context=min(sizes.trained_context, found.mask_tokens),
        policy="memory",
        curve=Curve({}, {}),
        max_itl=1.0,
        part=1.0,
        **figures,
    )
    declared = declare(need)
    taken = device_bytes(sizes, found, declared.sequences, declared.context_tokens)
    for size, device in zip(taken, machine.devices, strict=True):
        assert size <= max(0, device.free - reserve_of(device))


def test_the_smallest_room_of_a_device_decides_how_many_cells_there_are() -> None:
    sizes = dense()
    devices = (gpu(6), gpu(3, "CUDA1"))
    placement = planned(sizes, *devices)
    # After the load 1 GiB is left on the one and half of it on the other, beyond reserve and buffers.
    left = tuple(
        structs.replace(each, free=reserve_of(each) + sizes.buffers + room)
        for each, room in zip(devices, (GIB, GIB // 2), strict=True)
    )
    room = cells_room(sizes, placement, FreeMemory(64 * GIB, left), 0.25)
    layers = [count - (device == 1) for device, count in enumerate(placement.slots)]
    # The mask of a batch is whole on each of them.
    mask = SequenceBytes(1).mask(placement.tokens)
    assert room == int(min((GIB - mask) * 32 / layers[0], (GIB / 2 - mask) * 32 / layers[1])) + mask
    on_host = cells_room(sizes, planned(sizes), FreeMemory(8 * GIB), 0.25)
    assert on_host == 2 * GIB


@pytest.mark.parametrize("free", [0, 100 * MIB])
def test_a_device_that_is_full_is_left_alone(free: int) -> None:
    assert planned(dense(), Device("CUDA0", free, 8 * GIB)).slots == (0,)
