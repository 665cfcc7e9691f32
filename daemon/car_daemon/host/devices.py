"""Names of devices: `cpu`, `gpu` for all GPUs that llama.cpp finds, `gpu0`, `gpu1` ... for one of them."""

from msgspec import Struct

CPU = "cpu"
GPU = "gpu"
PATTERN = r"^(cpu|gpu(0|[1-9][0-9]?)?)$"


def is_on(device: str, wanted: str | None) -> bool:
    """Return whether a device is the wanted one; `gpu` accepts any GPU, None any device."""
    return wanted is None or device == wanted or (wanted == GPU and device.startswith(GPU))


def gpu_number(device: str) -> int | None:
    """Return the number of the GPU that a device names; None for `gpu` and `cpu`."""
    number = device.removeprefix(GPU)
    return int(number) if device.startswith(GPU) and number else None


class Device(Struct, frozen=True):
    """A device that computes, and its memory in bytes; a `shared` one uses the host's."""

    name: str
    free: int
    total: int
    shared: bool = False
