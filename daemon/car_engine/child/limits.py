"""The limits of a job: processor time and memory, which the kernel enforces, and the clock of the engine."""

import math
import resource

from car_base.host.memory import lower_limit

_MIB = 1 << 20
# Seconds of a core for a job of up to 1 MiB, and again for each further MiB. A request may keep the others of its model
# waiting for 5 s, and has two such jobs at most: a template may be tried in two forms.
_CPU_S = 2
# A job may wait this many times as long as it computes, because other programs may have the cores: the factor of the
# engine's own jobs, which have 5 s of work and 30 s in all.
_WAITING = 6
# The largest text (8 MiB, 4 bytes a character) is there ten times in the end, which is 320 MiB: the next power of two.
MEMORY_BYTES = 512 * _MIB


def cpu_s(size: int) -> int:
    """Return the seconds of a core that a job of so many bytes may take."""
    return _CPU_S * max(1, math.ceil(size / _MIB))


def wall_s(size: int) -> int:
    """Return the seconds after which the engine ends a job of so many bytes."""
    return _WAITING * cpu_s(size)


def in_words(size: int) -> str:
    """Return the limits of a job for the client that sent it."""
    return f"more than {cpu_s(size)} s of a core, or more than {MEMORY_BYTES // _MIB} MiB"


def limit_memory() -> None:
    """Bound the memory of this process, twice as much in address space; without files and core dumps."""
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, 0)
    lower_limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    lower_limit(resource.RLIMIT_AS, 2 * MEMORY_BYTES)


def limit_cpu(size: int) -> None:
    """Have the kernel end this process if its next job takes too long."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + cpu_s(size), hard))
