"""Sizes, rates and times as short text."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(size: float) -> str:
    """Return a size in the unit that leaves it below 1024."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit in _UNITS[:3] else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def mib_text(size: int) -> str:
    """Return a size in MiB, to be compared with others in a line."""
    return f"{size / 2**20:.0f} MiB"


def rate(per_second: float) -> str:
    """Return a rate, with a decimal below 100."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def duration(seconds: float) -> str:
    """Return a time in one or two units."""
    if 0 < seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
