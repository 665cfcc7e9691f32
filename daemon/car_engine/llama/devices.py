"""The devices that ggml finds, with their memory: its registry, which the binding does not wrap."""

import ctypes
from functools import cache
from typing import Any

from llama_cpp import llama_cpp as binding

from car_base.host.devices import Device
from car_base.ipc.frames import DeviceMemory

# ggml's numbers for devices with memory of their own, and for devices that share the host's.
_OWN, _SHARED = 1, 2


class GgmlRegistry:
    """The registry of the ggml that the binding loads."""

    def __init__(self) -> None:
        binding.llama_backend_init()
        library = ctypes.CDLL(binding._lib._name)
        handle, size = ctypes.c_void_p, ctypes.c_size_t
        self._count = _function(library, "ggml_backend_dev_count", [], size)
        self._get = _function(library, "ggml_backend_dev_get", [size], handle)
        self._kind = _function(library, "ggml_backend_dev_type", [handle], ctypes.c_int)
        self._name = _function(library, "ggml_backend_dev_name", [handle], ctypes.c_char_p)
        sizes = [handle, ctypes.POINTER(size), ctypes.POINTER(size)]
        self._memory = _function(library, "ggml_backend_dev_memory", sizes, None)

    def count(self) -> int:
        """Return the number of devices, processors among them."""
        return int(self._count())

    def get(self, number: int) -> Any:
        """Return the handle of a device."""
        return self._get(number)

    def kind(self, handle: Any) -> int:
        """Return ggml's number for the type of a device."""
        return int(self._kind(handle))

    def name(self, handle: Any) -> str:
        """Return the name of a device, such as CUDA0."""
        return str(self._name(handle).decode(errors="replace"))

    def memory(self, handle: Any) -> tuple[int, int]:
        """Return the free and the total bytes of a device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._memory(handle, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


def read_devices(registry: GgmlRegistry | None = None) -> tuple[Device, ...]:
    """Return the GPUs in ggml's order, with their memory now."""
    registry = registry or _ggml()
    handles = [registry.get(number) for number in range(registry.count())]
    return tuple(
        Device(registry.name(handle), *registry.memory(handle), shared=registry.kind(handle) == _SHARED)
        for handle in handles
        if registry.kind(handle) in (_OWN, _SHARED)
    )


@cache
def _ggml() -> GgmlRegistry:
    return GgmlRegistry()


def readings(devices: tuple[Device, ...]) -> list[DeviceMemory]:
    """Return the memory of devices for a frame."""
    return [DeviceMemory(each.name, each.free, each.total, each.shared) for each in devices]


class _Override(ctypes.Structure):
    """Ggml's pair of a pattern of names and the buffers for the tensors that it matches; the last pair is empty."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p))


def host_overrides(layers: tuple[int, ...]) -> Any:
    """Return the overrides that keep the experts of some layers on the host."""
    library = ctypes.CDLL(binding._lib._name)
    host = _function(library, "ggml_backend_cpu_buffer_type", [], ctypes.c_void_p)()
    pairs = [_Override(rf"blk\.{layer}\.ffn_.*_exps".encode(), host) for layer in layers]
    return (_Override * (len(pairs) + 1))(*pairs)


def tensor_split(slots: tuple[int, ...]) -> Any:
    """Return the number of slots for each device that llama.cpp may have."""
    most = int(binding.llama_max_devices())
    return (ctypes.c_float * most)(*slots[:most])


def _function(library: ctypes.CDLL, name: str, arguments: list[Any], result: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, result
    return function
