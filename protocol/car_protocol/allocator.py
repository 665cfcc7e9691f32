"""The C library's allocator, which keeps freed blocks for the process unless it is told otherwise."""

# glibc's M_MMAP_THRESHOLD. By default it grows with the largest block that was freed, and smaller blocks stay with the
# process: after a storm of long frames or bodies that memory is lost to all other programs.
_MMAP_THRESHOLD = -3
_FIRST_BYTES = 128 * 1024  # where it begins


def return_blocks(smallest: int = _FIRST_BYTES) -> bool:
    """Make the C library return blocks of so many bytes to the system once they are free; False if it cannot."""
    import ctypes  # 1.5 ms, which the first answers need not wait for

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_MMAP_THRESHOLD, smallest) == 1
