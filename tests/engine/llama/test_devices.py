"""The devices of ggml's registry."""

from car_base.host.devices import Device
from car_engine.llama.devices import GgmlRegistry, read_devices
from tests.engine.llama.invented import (
    ACCELERATOR,
    CPU,
    GIB,
    SHARED_GPU,
    InventedDevice,
    InventedRegistry,
)


def test_gpus_are_read_in_order_with_their_memory_and_processors_are_left_out() -> None:
    registry = InventedRegistry(
        [
            InventedDevice("BLAS", ACCELERATOR),
            InventedDevice("CUDA0", taken=GIB),
            InventedDevice("Vulkan0", SHARED_GPU, total=16 * GIB),
            InventedDevice("CPU", CPU),
        ]
    )
    assert read_devices(registry) == (
        Device("CUDA0", 7 * GIB, 8 * GIB),
        Device("Vulkan0", 16 * GIB, 16 * GIB, shared=True),
    )
    assert registry.read == ["CUDA0", "Vulkan0"]


def test_ggml_itself_has_a_processor_with_a_name_and_memory() -> None:
    registry = GgmlRegistry()
    handles = [registry.get(number) for number in range(registry.count())]
    processors = [handle for handle in handles if registry.kind(handle) == CPU]
    assert len(processors) == 1
    assert registry.name(processors[0]) == "CPU"
    free, total = registry.memory(processors[0])
    assert 0 <= free <= total
    assert total > GIB // 4
