"""Text for terminals: nothing in it can drive one."""

import os
from collections.abc import Iterator, Sequence
from typing import TextIO

WIDTH = 80
_LINE = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_TEXT = {code: shown for code, shown in _LINE.items() if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """Return the text with its control characters shown as symbols, line ends and tabs excepted."""
    return text.translate(_TEXT)


def one_line(text: str) -> str:
    """Return the text as one line, its control characters shown as symbols."""
    return text.translate(_LINE)


def clipped(text: str) -> str:
    """Return one line of at most WIDTH characters."""
    line = one_line(text)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines of aligned columns, clipped to WIDTH."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield clipped("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def is_terminal(output: TextIO) -> bool:
    """Tell whether the output is a terminal that understands more than lines."""
    return output.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_styled(output: TextIO) -> bool:
    """Tell whether text may be dimmed or coloured there; https://no-color.org is honoured."""
    return is_terminal(output) and not os.environ.get("NO_COLOR")


def dimmed(text: str, output: TextIO) -> str:
    """Return the text dimmed, where the output may be styled."""
    return f"\x1b[2m{visible(text)}\x1b[0m" if is_styled(output) else visible(text)
