"""A bound on the memory that an engine allocates after its load: the second line behind the bounds of each request."""

import resource
import sys
from pathlib import Path
from typing import NamedTuple

from car_base.host.devices import CPU
from car_base.host.process_limits import lower_limit
from car_base.ipc.frames import Load

# Of a thread of Python, virtual until it is used: regular expressions of some pre-tokenizers recurse with the text, and
# the grammar compiler with its rules.
STACK_BYTES = 1 << 30
# A thread of the C library has a stack and an arena of its own.
_THREAD_BYTES = 72 << 20
# llama.cpp's threads for generations, embeddings and images, and a few of Python's.
_POOLS, _OTHER_THREADS = 3, 8


class Used(NamedTuple):
    """Private writable and virtual bytes of a process."""

    data: int
    virtual: int


def limits_of(used: Used, *, later: int, margin: int, threads: int) -> Used:
    """Return the limits: what is used, what ordinary work adds later, and the margin.

    The margin is twice as large for virtual memory, because allocators and drivers reserve more than they use.
    """
    return Used(
        used.data + later + margin,
        used.virtual + later + 2 * margin + (_POOLS * threads + _OTHER_THREADS) * _THREAD_BYTES,
    )


def limit_memory(load: Load, *, later: int, threads: int) -> Used | None:
    """Limit this process to what it uses now and a margin; return the limits, None where there are none.

    A GPU's driver maps more than the machine has, so there is no limit with one.
    """
    margin = load.margin_bytes
    on_gpu = load.device != CPU or load.gpu_layers != 0
    if margin is None or on_gpu or load.sandbox == "off" or sys.platform != "linux":
        return None
    limits = limits_of(_used(), later=later, margin=margin, threads=threads)
    return Used(lower_limit(resource.RLIMIT_DATA, limits.data), lower_limit(resource.RLIMIT_AS, limits.virtual))


def _used() -> Used:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    values = dict(line.split(":", 1) for line in status.splitlines())
    # Each is a number and " kB".
    return Used(*(int(values[name].split()[0]) * 1024 for name in ("VmData", "VmSize")))
