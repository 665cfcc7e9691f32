"""Memory of the machine and of its control groups, stalls on it, and the resident memory of a process."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

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
    """Read the memory of a process; all 0 where it has ended or may not be inspected."""
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
    """Return the `avg10` of `some` and `full` in percent; zeros where the kernel does not report them."""
    try:
        lines = file.read_text().splitlines()
        percents = {line.split()[0]: float(line.split()[1].removeprefix("avg10=")) for line in lines}
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    return percents.get("some", 0.0), percents.get("full", 0.0)
