"""Limits of this process: lowered ones, its file descriptors, and the free memory that the C library keeps."""

import os
import resource

from msgspec import structs

from car_protocol.limits import Limits

# Descriptors kept free for engines and their start, for files that are read, and for clients that are refused with
# a reason. Where the limit is low a quarter of it is kept.
_RESERVED = 64
_LEAST_RESERVED = 16
# glibc's M_MMAP_THRESHOLD. By default it grows with the largest block that was freed, and smaller blocks stay with the
# process: after a storm of long frames that memory is lost to all other programs.
_MMAP_THRESHOLD = -3


def within_descriptors(limits: Limits) -> Limits:
    """Raise the descriptor limit as far as it may be; return the limits with no more connections than it allows."""
    used = len(os.listdir("/dev/fd")) - 1
    allowed = needed = limits.max_connections + used + _RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        if soft < reachable:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        allowed = max(soft, reachable)
    reserved = min(_RESERVED, max(_LEAST_RESERVED, allowed // 4))
    return structs.replace(limits, max_connections=max(1, min(limits.max_connections, allowed - used - reserved)))


def return_blocks(smallest: int) -> bool:
    """Make the C library return blocks of so many bytes to the system once they are free; False where it cannot."""
    import ctypes  # 1.5 ms, which the first answers need not wait for

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_MMAP_THRESHOLD, smallest) == 1


def lower_limit(limit: int, value: int) -> int:
    """Lower a limit of this process for good; one that is lower already stays. Return the one in force."""
    soft, hard = resource.getrlimit(limit)
    known = [each for each in (soft, hard, value) if each != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), hard if hard != resource.RLIM_INFINITY and hard < value else value))
    return min(known)
