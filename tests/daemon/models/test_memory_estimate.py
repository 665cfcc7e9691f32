"""The memory of a model, estimated by its headers."""

from pathlib import Path

from msgspec import structs

from car_base.ipc.types import KvType
from car_daemon.models.memory_estimate import MemoryEstimate, estimate_memory
from car_daemon.models.model_files import check_model
from car_daemon.models.settings import ModelSettings
from tests.daemon.gguf.files import U32, model, numbers, u32

# Bytes of the attention mask of a batch of 512 rows, for each token of a context.
MASK = 512 * 2


def estimated(settings: ModelSettings) -> MemoryEstimate:
    return estimate_memory(check_model(settings.path), settings)


def test_weights_are_those_of_the_file_and_the_cache_that_of_one_sequence(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m.gguf")
    estimate = estimated(ModelSettings(path))
    # Two layers of two heads of eight keys and eight values in 16 bits, for all 64 tokens of the context.
    assert (estimate.weights, estimate.kv) == (1024, 64 * (2 * 2 * 16 * 2 + MASK))
    assert estimated(ModelSettings(path, context_tokens=256)).kv == 4 * estimate.kv
    assert estimate.total == estimate.weights + estimate.kv + estimate.others


def test_a_quantized_cache_takes_half_or_a_quarter_and_a_little_more_for_the_scales(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m.gguf")
    numbers_of_a_token = 2 * 2 * 16
    bits: dict[KvType, float] = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5}
    for kv_type, of_a_number in bits.items():
        estimate = estimated(ModelSettings(path, kv_type=kv_type))
        assert estimate.kv == 64 * (numbers_of_a_token * of_a_number / 8 + MASK)


def test_heads_that_differ_from_layer_to_layer_are_added_up(tmp_path: Path) -> None:
    path = model(llama__attention__head_count_kv=numbers(U32, 1, 4)).write(tmp_path / "m.gguf")
    assert estimated(ModelSettings(path)).kv == 64 * ((1 + 4) * 16 * 2 + MASK)


def test_a_context_that_the_model_decides_counts_as_the_least_that_is_served(tmp_path: Path) -> None:
    path = model(llama__context_length=u32(1 << 20)).write(tmp_path / "m.gguf")
    assert estimated(ModelSettings(path)).kv == 2048 * (128 + MASK)


def test_layers_on_a_gpu_take_none_of_the_hosts_memory_and_files_beside_the_model_do(tmp_path: Path) -> None:
    path = model().write(tmp_path / "m.gguf")
    adapter = tmp_path / "a.gguf"
    adapter.write_bytes(bytes(77))
    beside = ModelSettings(path, adapters={"a": adapter}, projector=tmp_path / "missing.gguf")
    assert estimated(beside).weights == 1024 + 77
    on_gpu = estimated(structs.replace(beside, gpu_layers=-1))
    assert (on_gpu.weights, on_gpu.kv) == (77, 0)
