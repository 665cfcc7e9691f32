"""Markdown tables."""

from collections.abc import Sequence


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; figures stand to the right of every column but the first."""
    marks = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, marks, *rows))


def figure(value: float) -> str:
    """Return a figure with three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
