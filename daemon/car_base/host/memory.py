"""Memory of the machine, of its control groups and of a process; its pressure; and the limits of this process."""

import os
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from car_protocol.capacity import Pressure
from car_protocol.limits import Limits
from car_protocol.meta import note

_UNLIMITED = 1 << 62
_ASSUMED = 16 * 1024**3
_PSI = Path("proc/pressure/memory")


class MemoryReading(Struct, frozen=True):
    """Bytes in total and available; percent of the last 10 s in which some, and all, tasks waited for memory."""

    total: int
    available: int
    some_percent: float = 0.0
    full_percent: float = 0.0


MemorySource = Callable[[], MemoryReading]


def read_memory(root: Path = Path("/")) -> MemoryReading:
    """Read the memory now, within the limits of this process's control groups."""
    import psutil  # takes 8 ms to import, which most first answers need not wait for

    total = available = _ASSUMED
    with suppress(OSError, RuntimeError, psutil.Error):
        memory = psutil.virtual_memory()
        total, available = memory.total, memory.available
    for folder in _group_folders(root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            total = min(total, limit)
            available = min(available, max(0, limit - used + _reclaimable(folder / "memory.stat")))
    some, full = _stalls(root / _PSI)
    return MemoryReading(total, available, some, full)


class ProcessMemory(Struct, frozen=True):
    """Bytes of a process: resident, private and writable (0 outside Linux), and virtual."""

    resident: int = 0
    private: int = 0
    virtual: int = 0


def read_process_memory(pid: int) -> ProcessMemory:
    """Read the memory of a process; all 0 if it has ended or may not be inspected."""
    import psutil

    try:
        found = psutil.Process(pid).memory_info()
    except psutil.Error:
        return ProcessMemory()
    return ProcessMemory(found.rss, getattr(found, "data", 0), found.vms)


def _group_folders(root: Path) -> list[Path]:
    """Return the folders of this process's control group and of its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            base = root / "sys/fs/cgroup" / ("" if controllers == "" else "memory")
            own = base / path.lstrip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(base)]
    return folders


def _reclaimable(stat: Path) -> int:
    """Return the bytes of file cache that the kernel reclaims before the group runs out of memory."""
    try:
        facts = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(facts.get("inactive_file", 0))


def _number(*files: Path) -> int | None:
    """Return the number in the first file that contains one."""
    for file in files:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            # The file is missing in this version of control groups, or contains the word `max`.
            continue
    return None


def _stalls(file: Path) -> tuple[float, float]:
    """Return the `avg10` of `some` and `full` in percent; zeros if the kernel does not report them."""
    try:
        lines = file.read_text().splitlines()
        percents = {line.split()[0]: float(line.split()[1].removeprefix("avg10=")) for line in lines}
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    return percents.get("some", 0.0), percents.get("full", 0.0)


_LEVELS: tuple[Pressure, ...] = ("none", "some", "critical")
Percent = Annotated[float, Meta(gt=0, le=100)]


def highest(levels: Iterable[Pressure]) -> Pressure:
    """Return the highest of some levels; `none` without any."""
    return max(levels, key=_LEVELS.index, default="none")


class PressureLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds of the levels in percent, and the calm interval before a level is lowered in seconds."""

    some_available: Annotated[Percent, note("percent of memory available, below which 3/4 of the sequences run")] = 10.0
    critical_available: Annotated[Percent, note("percent, below which half of them run")] = 5.0
    some_stalled: Annotated[Percent, note("percent of the time that some tasks wait for memory (Linux): 3/4")] = 10.0
    critical_stalled: Annotated[Percent, note("percent of the time that all tasks wait for memory: half")] = 10.0
    calm_s: Annotated[
        float, Meta(ge=0, le=3600), note("how long memory has to be better before capacity rises again")
    ] = 10.0


class PressureGauge:
    """Derives a level from readings; `now` is the caller's clock in seconds."""

    def __init__(self, limits: PressureLimits) -> None:
        self.limits = limits
        self.level: Pressure = "none"
        self._calm_since: float | None = None  # readings have been below the level since then

    def update(self, available_percent: float, some_percent: float, full_percent: float, now: float) -> bool:
        """Apply a reading; return True if the level changed."""
        limits = self.limits
        reading: Pressure = "none"
        if available_percent < limits.critical_available or full_percent > limits.critical_stalled:
            reading = "critical"
        elif available_percent < limits.some_available or some_percent > limits.some_stalled:
            reading = "some"
        if _LEVELS.index(reading) >= _LEVELS.index(self.level):
            self._calm_since = None
            return self._become(reading)
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.limits.calm_s:
            return False
        self._calm_since = None
        return self._become(reading)

    def _become(self, level: Pressure) -> bool:
        changed = level != self.level
        self.level = level
        return changed


# Descriptors kept free for engines and their start, for files that are read, and for clients that are refused with
# a reason. Where the limit is low a quarter of it is kept.
_RESERVED = 64
_LEAST_RESERVED = 16


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


def lower_limit(limit: int, value: int) -> int:
    """Lower a limit of this process for good; one that is lower already stays. Return the one in force."""
    soft, hard = resource.getrlimit(limit)
    known = [each for each in (soft, hard, value) if each != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), hard if hard != resource.RLIM_INFINITY and hard < value else value))
    return min(known)
