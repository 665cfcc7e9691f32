"""Bars of marks: what each sequence does, and how much of a whole is used."""

from itertools import accumulate

from rich.text import Text

from car_client.carctl.view.status_figures import PHASE_STYLES, Load

# The marks differ in shape too, for terminals without colour. A parked request holds no sequence.
_MARKS = {"decode": "█", "prefill": "▓", "other": "▒", "free": "░"}


def sequence_bar(now: Load, width: int) -> Text:
    """Return a bar with a block for every sequence, or in proportion where there are too many for the width."""
    counts = {name: count for name, count in now._asdict().items() if name in _MARKS}
    total = sum(counts.values())
    bar = Text()
    if total and width // total > 1:
        for name, count in counts.items():
            bar.append((_MARKS[name] * (width // total - 1) + " ") * count, PHASE_STYLES[name])
    else:
        for name, until in zip(counts, accumulate(counts.values()), strict=True):
            columns = round(until * width / (total or 1)) - len(bar)
            bar.append(_MARKS[name] * columns, PHASE_STYLES[name])
    bar.append(" " * (width - len(bar)))
    return bar


def gauge(value: int, whole: int, width: int, style: str) -> Text:
    """Return a line filled by the share of the value in the whole, by one column at least where the value is not 0."""
    filled = min(width, max(round(value * width / whole) if whole else 0, 1 if value else 0))
    return Text.assemble(("━" * filled, style), ("─" * (width - filled), "dim"))
