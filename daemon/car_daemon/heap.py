"""What the C library does with memory that is free again."""

import ctypes

# glibc's M_MMAP_THRESHOLD. Where nobody sets it, it grows with the largest block that was freed, and blocks below it
# stay with the process: after a storm of long frames that is memory that nobody uses.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1024 * 1024


def return_large_blocks() -> bool:
    """Have large blocks go back to the system as soon as they are free; False where the C library does not take it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_MMAP_THRESHOLD, _LARGE_BYTES) == 1
