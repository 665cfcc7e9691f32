"""Rows under headings, as a table that fits."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2
_LEFT = frozenset({"model", "state", "device", "running", "client", "clients", "phase", "request"})


class Listing:
    """Rows of cells; where it is narrow, whole columns give way, the first of `spare` first."""

    def __init__(self, *headings: str, spare: Sequence[str]) -> None:
        self._headings = headings
        self._spare = spare
        # Mutable state: the rows with their styles.
        self._rows: list[tuple[list[Text], str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *cells: Text, style: str = "") -> None:
        """Add a row; it may end early."""
        self._rows.append((list(cells), style))

    def table(self, width: int) -> Table:
        """Return the table for so many columns of the terminal; figures stand to the right."""
        shown = self._fitting(width)
        made = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
        for place in shown:
            heading = self._headings[place]
            made.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
        for cells, style in self._rows:
            made.add_row(*(cells[place] for place in shown if place < len(cells)), style=style)
        return made

    def _fitting(self, width: int) -> list[int]:
        shown = list(range(len(self._headings)))
        for heading in self._spare:
            if self._width(shown) <= width:
                break
            shown.remove(self._headings.index(heading))
        return shown

    def _width(self, shown: list[int]) -> int:
        return sum(self._column_width(place) for place in shown) + _GAP * (len(shown) - 1)

    def _column_width(self, place: int) -> int:
        cells = (cells[place].cell_len for cells, _ in self._rows if place < len(cells))
        return max(cell_len(self._headings[place]), *cells, 0)
