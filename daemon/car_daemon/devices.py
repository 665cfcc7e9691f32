"""What devices are called: `cpu`, `gpu` for all that llama.cpp finds, `gpu0`, `gpu1` ... for one of them."""

CPU = "cpu"
GPU = "gpu"
PATTERN = r"^(cpu|gpu(0|[1-9][0-9]?)?)$"


def is_on(device: str, wanted: str | None) -> bool:
    """Tell whether what runs on a device suits who wants one; `gpu` means any of them."""
    return wanted is None or device == wanted or (wanted == GPU and device.startswith(GPU))


def gpu_number(device: str) -> int | None:
    """Return which GPU a device is; None where it is all of them, or none."""
    number = device.removeprefix(GPU)
    return int(number) if device.startswith(GPU) and number else None
