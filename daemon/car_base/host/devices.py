"""Names of devices: `cpu`, `gpu` for all GPUs that llama.cpp finds, `gpu0`, `gpu1` ... for a single GPU.

`auto` is `gpu` or `cpu` once it is known whether llama.cpp finds GPUs.
"""

import sys
from pathlib import Path

from msgspec import Struct

AUTO = "auto"
CPU = "cpu"
GPU = "gpu"
# The files of a GPU's driver: NVIDIA's, the kernel's for graphics, AMD's, that of Linux in Windows, and Jetson's.
_DRIVER_FILES = ("nvidia[0-9]*", "nvidiactl", "dri/renderD*", "kfd", "dxg", "nvhost-gpu")
PATTERN = r"^(cpu|gpu(0|[1-9][0-9]?)?)$"
PATTERN_OR_AUTO = r"^(auto|cpu|gpu(0|[1-9][0-9]?)?)$"


def is_on(device: str, wanted: str | None) -> bool:
    """Return whether a device is the wanted one, or may be; `gpu` accepts any GPU, None any device."""
    return wanted is None or device in (wanted, AUTO) or (wanted == GPU and device.startswith(GPU))


def overlap(one: str, other: str) -> bool:
    """Return whether two devices may be the same GPU; replicas on the CPU share none."""
    return CPU not in (one, other) and (one == other or GPU in (one, other))


def gpu_number(device: str) -> int | None:
    """Return the number of the GPU that a device names; None for `gpu` and `cpu`."""
    number = device.removeprefix(GPU)
    return int(number) if device.startswith(GPU) and number else None


def may_have_gpus(folder: Path = Path("/dev"), platform: str = sys.platform) -> bool:
    """Return whether the machine may have a GPU: a driver's file, or macOS."""
    return platform == "darwin" or any(True for pattern in _DRIVER_FILES for _ in folder.glob(pattern))


class Device(Struct, frozen=True):
    """A device that computes, and its memory in bytes; a `shared` one uses the host's."""

    name: str
    free: int
    total: int
    shared: bool = False
