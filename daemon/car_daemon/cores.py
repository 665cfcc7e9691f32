"""What the cores worked so far: in all, and for the daemon and its engines."""

import os
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

# What is no work of any program of this machine, or counted in another figure already.
_NO_WORK = ("idle", "iowait", "steal", "guest", "guest_nice")


class CoresReading(Struct, frozen=True):
    """Seconds of work since the start of the machine on the CPUs that we may use, and of our processes, by pid."""

    all: float
    own: dict[int, float]


CoresSource = Callable[[Collection[int]], CoresReading]


def read_cores(pids: Collection[int]) -> CoresReading:
    """Read what is true now; a process that is gone is left out. Raises OSError."""
    import psutil  # 8 ms of a start that most first answers need not wait for

    times = psutil.cpu_times(percpu=True)
    worked = sum(_worked(times[cpu]) for cpu in usable_cpus() if cpu < len(times))
    return CoresReading(worked, {pid: seconds for pid in pids if (seconds := _seconds_of(pid)) is not None})


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _worked(times: Any) -> float:
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in _NO_WORK))


def _seconds_of(pid: int) -> float | None:
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied as error:
        raise PermissionError from error
    return float(times.user + times.system)
