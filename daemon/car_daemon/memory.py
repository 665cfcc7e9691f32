"""How much memory there is: of the machine, of its control group, how hard it is to get; and what a process holds."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

_UNLIMITED = 1 << 62
_WHERE_UNREADABLE = 16 * 1024**3
_PSI = Path("proc/pressure/memory")


class MemoryReading(Struct, frozen=True):
    """Bytes in total and available; the share of the last 10 s that some, and all, tasks waited for memory."""

    total: int
    available: int
    some_percent: float = 0.0
    full_percent: float = 0.0


MemorySource = Callable[[], MemoryReading]


def read_memory(root: Path = Path("/")) -> MemoryReading:
    """Read what is true now; a control group's limit counts where it is the smaller one."""
    total, available = _machine()
    for limit, used in _group_limits(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    some, full = _stalls(root / _PSI)
    return MemoryReading(total, available, some, full)


def _machine() -> tuple[int, int]:
    """Return total and available bytes of the machine; 16 GiB where they cannot be read."""
    import psutil  # 8 ms of a start that most first answers need not wait for

    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError, psutil.Error):
        return _WHERE_UNREADABLE, _WHERE_UNREADABLE
    return memory.total, memory.available


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds; 0 where it is gone or may not be looked at."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _group_limits(root: Path) -> list[tuple[int, int]]:
    """Return limit and use in bytes of this process's control group and those around it."""
    limits = []
    for folder in _group_folders(root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            limits.append((limit, used - _reclaimable(folder / "memory.stat")))
    return limits


def _group_folders(root: Path) -> list[Path]:
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
    """Bytes of file cache that the group gives back before it runs out."""
    try:
        facts = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(facts.get("inactive_file", 0))


def _number(*files: Path) -> int | None:
    """Return the number in the first file that has one."""
    for file in files:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            # Missing in this version of control groups, or the word `max`.
            continue
    return None


def _stalls(file: Path) -> tuple[float, float]:
    """Return the `avg10` of `some` and `full` in percent; zeros where the kernel does not tell."""
    try:
        lines = file.read_text().splitlines()
        percents = {line.split()[0]: float(line.split()[1].removeprefix("avg10=")) for line in lines}
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    return percents.get("some", 0.0), percents.get("full", 0.0)
