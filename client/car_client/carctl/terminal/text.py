"""Text for terminals, which it cannot control; sizes, rates and times as short text."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TextIO

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


WIDTH = 80
_LINE = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_TEXT = {code: shown for code, shown in _LINE.items() if chr(code) not in "\n\t"}
# In a table these would turn the columns round; texts of some languages need them.
_LINE |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
# Characters that a terminal takes for commands, or that turn its lines round.
CONTROLS = frozenset(_LINE)

# Returns the columns of a terminal that a text takes: `len`, or with rich a function for wide characters too.
Measure = Callable[[str], int]


class Span(NamedTuple):
    """Text in one style; a style is a word of rich's, and has no effect on plain lines."""

    text: str
    style: str = ""


def visible(text: str) -> str:
    """Return the text with its control characters shown as symbols, line ends and tabs excepted."""
    return text.translate(_TEXT)


def one_line(text: str) -> str:
    """Return the text as one line, its control characters shown as symbols."""
    return text.translate(_LINE)


def clipped(text: str) -> str:
    """Return one line of at most WIDTH characters."""
    return shortened(one_line(text), WIDTH)


def shortened(text: str, width: int) -> str:
    """Return the beginning of a text, with an ellipsis if a part is missing."""
    return text if len(text) <= width else text[: width - 1] + "…"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines of aligned columns, however long, because another program may read them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield one_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def is_terminal(output: TextIO) -> bool:
    """Return whether the output is a terminal that supports more than lines."""
    return output.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_styled(output: TextIO) -> bool:
    """Return whether text may be dimmed or coloured there, as https://no-color.org has it."""
    return is_terminal(output) and not os.environ.get("NO_COLOR")


def dimmed(text: str, output: TextIO) -> str:
    """Return the text, dimmed if the output may be styled."""
    return f"\x1b[2m{visible(text)}\x1b[0m" if is_styled(output) else visible(text)
