"""A line of the table of verdicts."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.table import figure


class Line(NamedTuple):
    """A line of the table; `met` is None where nothing was beside card, or no bar is set."""

    name: str
    card: str
    beside: str
    bar: str
    met: bool | None

    def row(self) -> list[str]:
        """Return its cells."""
        return [self.name, self.card, self.beside, self.bar, {True: "met", False: "MISSED", None: "-"}[self.met]]


def at_most(name: str, own: float, most: float) -> Line:
    """Return the line of a figure with a bar of its own."""
    return Line(name, figure(own), "", f"at most {figure(most)}", own <= most)


def at_least(name: str, ratios: Sequence[float], least: float) -> Line:
    """Return the line of ratios of which the lowest is judged, in hundredths; the median stands beside it."""
    lowest = round(min(ratios), 2)
    return Line(
        name, f"{lowest:.2f}", f"median {statistics.median(ratios):.2f}", f"at least {least:.2f}", lowest >= least
    )


def ratio_at_most(name: str, own: Sequence[float], its: Sequence[float], most: float) -> Line:
    """Return the line of the median ratio, turn by turn, of card's figures to those beside them, in hundredths."""
    ratio = round(statistics.median(mine / other for mine, other in zip(own, its, strict=True)), 2)
    medians = figure(statistics.median(own)), figure(statistics.median(its))
    return Line(name, *medians, f"{ratio:.2f}, at most {most:.2f}", ratio <= most)
