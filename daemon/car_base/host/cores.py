"""CPU time used so far: by all programs, and by the daemon and its engines; and the time that threads waited for it."""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

# Times in which no program of this machine runs, and times that another figure includes already.
_NOT_USED = ("idle", "iowait", "steal", "guest", "guest_nice")


class CoresReading(Struct, frozen=True):
    """CPU seconds since the machine started, on the CPUs that this process may use, and of our processes by pid."""

    all: float
    own: dict[int, float]


CoresSource = Callable[[Collection[int]], CoresReading]


def foreign_cores(before: CoresReading, after: CoresReading, seconds: float) -> float:
    """Return the cores that other programs used between two readings."""
    own_s = sum(max(0.0, used - before.own.get(pid, 0.0)) for pid, used in after.own.items())
    return max(0.0, after.all - before.all - own_s) / seconds


def read_cores(pids: Collection[int]) -> CoresReading:
    """Read the CPU times now; a process that has ended is left out. Raises OSError."""
    import psutil  # takes 8 ms to import, which most first answers need not wait for

    times = psutil.cpu_times(percpu=True)
    ours = [times[cpu] for cpu in usable_cpus() if cpu < len(times)]
    used = sum(sum(each) - sum(getattr(each, name, 0.0) for name in _NOT_USED) for each in ours)
    return CoresReading(float(used), {pid: seconds for pid in pids if (seconds := _seconds_of(pid)) is not None})


def waits_for_cores(pid: int) -> dict[str, float]:
    """Return how long each thread of a process has waited for a core, in seconds; empty if nothing counts it."""
    waits = {}
    with suppress(OSError):  # the process has ended, or this is not Linux
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # this thread has ended
                waits[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return waits


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _seconds_of(pid: int) -> float | None:
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied as error:
        raise PermissionError from error
    return float(times.user + times.system)
