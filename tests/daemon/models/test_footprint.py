"""How much memory a model takes, by its headers; and what is left for one more."""

from pathlib import Path

import pytest
from msgspec import structs

from car_daemon.memory import MemoryReading
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.footprint import Footprint, read_footprint
from car_daemon.models.room import Room, footprint_of
from car_daemon.models.unsound import UnsoundModel
from tests.daemon.links import ready_of
from tests.daemon.models.files import U32, model, numbers, u32

READY = ready_of(kv_bytes=70)


def entry(name: str, weights: int) -> ModelEntry:
    one = ModelEntry(name, ModelSettings(Path(name)), default=False, on_change=lambda _: None)
    one.footprint = Footprint(weights, 10, 5)
    return one


def room(budget: int | None, available: int) -> Room:
    return Room(budget, lambda: MemoryReading(10_000, available))


def test_weights_are_those_of_the_file_and_the_cache_that_of_one_sequence(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m.gguf")
    footprint = read_footprint(ModelSettings(path))
    # Two layers of two heads of eight keys and eight values in 16 bits, for all 64 tokens of the context.
    assert (footprint.weights, footprint.kv) == (1024, 64 * 2 * 2 * 16 * 2)
    assert read_footprint(ModelSettings(path, context_tokens=256)).kv == 4 * footprint.kv
    assert footprint.total == footprint.weights + footprint.kv + footprint.others


def test_heads_that_differ_from_layer_to_layer_are_added_up(tmp_path: Path) -> None:
    path = model(llama__attention__head_count_kv=numbers(U32, 1, 4)).write(tmp_path / "m.gguf")
    assert read_footprint(ModelSettings(path)).kv == 64 * (1 + 4) * 16 * 2


def test_a_context_that_the_model_decides_counts_as_the_least_that_is_served(tmp_path: Path) -> None:
    path = model(llama__context_length=u32(1 << 20)).write(tmp_path / "m.gguf")
    assert read_footprint(ModelSettings(path)).kv == 2048 * 128


def test_layers_on_a_gpu_take_none_of_the_hosts_memory_and_files_beside_the_model_do(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m.gguf")
    adapter = tmp_path / "a.gguf"
    adapter.write_bytes(bytes(77))
    beside = ModelSettings(path, adapters={"a": adapter}, projector=tmp_path / "missing.gguf")
    assert read_footprint(beside).weights == 1024 + 77
    on_gpu = read_footprint(structs.replace(beside, gpu_layers=-1))
    assert (on_gpu.weights, on_gpu.kv) == (77, 0)


def test_an_unsound_file_has_no_size(tmp_path: Path) -> None:
    with pytest.raises(UnsoundModel):
        read_footprint(ModelSettings(tmp_path / "none.gguf"))


def test_without_a_budget_what_is_free_counts_less_what_others_are_about_to_take() -> None:
    shared, coming = room(None, 1000), entry("a", 100)
    assert shared.free() == 1000
    shared.enter(coming)
    assert shared.free() == 1000 - 115
    coming.replicas[0].become("ready", ready=READY)
    assert shared.free() == 1000


def test_a_budget_counts_what_all_take_and_is_never_more_than_what_is_free() -> None:
    shared, one = room(300, 1000), entry("a", 100)
    shared.enter(one)
    assert shared.free() == 300 - 115
    one.replicas[0].become("ready", ready=READY)
    assert (footprint_of(one), shared.free()) == (175, 125)
    shared.leave(one)
    assert shared.free() == 300
    assert room(300, 200).free() == 200


def test_the_budget_less_weights_is_what_an_engine_may_take_for_its_cache() -> None:
    shared, one, other = room(300, 1000), entry("a", 100), entry("b", 50)
    shared.enter(one)
    one.replicas[0].become("ready", ready=READY)
    shared.enter(other)
    assert (one.budget_bytes, other.budget_bytes) == (195, 300 - 175 - 55)
    unlimited = room(None, 1000)
    unlimited.enter(one)
    assert one.budget_bytes is None


def test_what_a_model_has_is_free_for_itself() -> None:
    shared, one, other = room(300, 1000), entry("a", 100), entry("b", 50)
    shared.enter(one)
    one.replicas[0].become("ready", ready=READY)
    assert (shared.free_for(one), shared.free_for(other)) == (300, 125)
