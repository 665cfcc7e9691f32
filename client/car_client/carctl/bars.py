"""Bars of marks: what each sequence does, and how much of a whole is used."""

from collections.abc import Sequence

from rich.text import Text

from car_client.carctl.figures import Load

# What a sequence does, its mark, and its style: the marks tell it without colour too. What is parked holds none.
MARKS = {
    "decode": ("█", "green"),
    "prefill": ("▓", "cyan"),
    "other": ("▒", "magenta"),
    "free": ("░", "dim"),
    "parked": ("", "yellow"),
}


def sequence_bar(now: Load, width: int) -> Text:
    """Return a bar with a block for every sequence, or in proportion where they are too many."""
    held = [(name, figure) for name, figure in now._asdict().items() if name != "parked"]
    total = sum(figure for _, figure in held)
    bar = Text()
    if total and width // total > 1:
        for name, figure in held:
            bar.append((MARKS[name][0] * (width // total - 1) + " ") * figure, MARKS[name][1])
    else:
        for (name, _), columns in zip(held, _columns([figure for _, figure in held], width), strict=True):
            bar.append(MARKS[name][0] * columns, MARKS[name][1])
    bar.append(" " * (width - len(bar)))
    return bar


def _columns(figures: Sequence[int], width: int) -> list[int]:
    total = sum(figures) or 1
    ends = [round(sum(figures[: place + 1]) * width / total) for place in range(len(figures))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def gauge(value: int, whole: int, width: int, style: str) -> Text:
    """Return a line of which as much is filled as the value is of the whole; anything shows."""
    filled = min(width, max(round(value * width / whole) if whole else 0, 1 if value else 0))
    return Text.assemble(("━" * filled, style), ("─" * (width - filled), "dim"))
