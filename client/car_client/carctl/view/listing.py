"""Rows under headings, aligned in columns that fit a width."""

from collections.abc import Iterator, Sequence

from car_client.carctl.terminal.text import Measure, Span, one_line

_GAP = 2
_LEFT = frozenset({"model", "state", "device", "running", "client", "clients", "phase", "request"})


class Listing:
    """Rows of cells; where the width does not suffice, whole columns are left out, the first of `spare` first."""

    def __init__(self, *headings: str, spare: Sequence[str]) -> None:
        self._headings = headings
        self._spare = spare
        self._rows: list[tuple[list[Span], str]] = []  # cells, and the style of the whole row

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *cells: Span, style: str = "") -> None:
        """Add a row; missing cells at its end are empty."""
        missing = len(self._headings) - len(cells)
        shown = [Span(one_line(cell.text), cell.style) for cell in cells]
        self._rows.append(([*shown, *[Span("")] * missing], style))

    def lines(self, width: int, measure: Measure) -> Iterator[list[Span]]:
        """Yield the headings and the rows; `measure` returns the columns of the terminal that a text takes."""
        headings = [Span(heading, "dim") for heading in self._headings]
        widths = [
            max(measure(row[place].text) for row in (headings, *(cells for cells, _ in self._rows)))
            for place in range(len(headings))
        ]
        shown = self._fitting(widths, width)
        for cells, style in ((headings, ""), *self._rows):
            line: list[Span] = []
            for place in shown:
                cell, gap = cells[place], " " * _GAP if line else ""
                padding = " " * (widths[place] - measure(cell.text))
                text = cell.text + padding if self._headings[place] in _LEFT else padding + cell.text
                line.append(Span(gap + text, f"{cell.style} {style}".strip()))
            yield line

    def _fitting(self, widths: Sequence[int], width: int) -> list[int]:
        shown = list(range(len(self._headings)))
        for heading in self._spare:
            if sum(widths[place] + _GAP for place in shown) - _GAP <= width:
                break
            shown.remove(self._headings.index(heading))
        return shown
