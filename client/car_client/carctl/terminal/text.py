"""Text for terminals, which it cannot control."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TextIO

WIDTH = 80
_LINE = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_TEXT = {code: shown for code, shown in _LINE.items() if chr(code) not in "\n\t"}

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
    """Return the beginning of a text, with an ellipsis where a part is missing."""
    return text if len(text) <= width else text[: width - 1] + "…"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines of aligned columns, clipped to WIDTH."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield clipped("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def is_terminal(output: TextIO) -> bool:
    """Return whether the output is a terminal that supports more than lines."""
    return output.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_styled(output: TextIO) -> bool:
    """Return whether text may be dimmed or coloured there, as https://no-color.org has it."""
    return is_terminal(output) and not os.environ.get("NO_COLOR")


def dimmed(text: str, output: TextIO) -> str:
    """Return the text, dimmed if the output may be styled."""
    return f"\x1b[2m{visible(text)}\x1b[0m" if is_styled(output) else visible(text)
