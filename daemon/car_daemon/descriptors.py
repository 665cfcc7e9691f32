"""How many file descriptors this process may have, and how many connections that leaves."""

import os
import resource

from msgspec import structs

from car_protocol.limits import Limits

# Kept free for engines and their start, for files that are read, and for newcomers that are told why they cannot stay.
# Of few they are a quarter.
_RESERVED = 64
_LEAST_RESERVED = 16


def within_descriptors(limits: Limits) -> Limits:
    """Return the limits with no more connections than descriptors; the process gets as many as it may have."""
    taken = len(os.listdir("/dev/fd")) - 1
    allowed = _raise_limit(limits.max_connections + taken + _RESERVED)
    reserved = min(_RESERVED, max(_LEAST_RESERVED, allowed // 4))
    return structs.replace(limits, max_connections=max(1, min(limits.max_connections, allowed - taken - reserved)))


def _raise_limit(wanted: int) -> int:
    """Have at least that many descriptors where the hard limit allows it; return how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft >= reachable:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return reachable
