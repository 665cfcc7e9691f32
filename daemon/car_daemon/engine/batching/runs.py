"""How the rows of a step are cut into decodes: runs of consecutive sequences, filled up where that is cheaper."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

# A run is filled up by at most so many rows beyond its ends: sizes that are cheap lie no further apart.
_MOST_EXTRA = 3

# The lowest and the highest number of a run.
Span = tuple[int, int]


def plan_runs(
    numbers: Sequence[int], *, can_pad: Callable[[int], bool], cost: Callable[[int], float], most: int
) -> list[Span]:
    """Return the cheapest runs of at most `most` rows that hold the ascending `numbers`; `cost` is in seconds by rows.

    There is at least one number. What lies between the ends of a run and is none of them has to be padded, or the run
    cannot be. A run may cost more than its halves (two rows more than twice one, say), or than a larger one.
    """
    holes = _Holes(numbers, can_pad)
    widest = numbers[-1] - numbers[0] + 1 + _MOST_EXTRA
    costs = [0.0, *map(cost, range(1, min(most, widest) + 1))]
    best: list[tuple[float, int, Span]] = [(0.0, 0, (0, 0))]
    for end in range(1, len(numbers) + 1):
        candidates = (
            (best[start][0] + costs[high - low + 1], start, (low, high))
            for start in holes.starts(end)
            for low, high in holes.spans(start, end)
            if high - low + 1 <= most
        )
        best.append(min(candidates))
    return list(_walk_back(best))


def _walk_back(best: list[tuple[float, int, Span]]) -> Iterator[Span]:
    """Yield the runs of the cheapest way to the last number, the lowest first."""
    spans = []
    place = len(best) - 1
    while place:
        _, place, span = best[place]
        spans.append(span)
    yield from reversed(spans)


class _Holes:
    """What lies between and around the numbers: how far runs may reach."""

    def __init__(self, numbers: Sequence[int], can_pad: Callable[[int], bool]) -> None:
        self._numbers = numbers
        self._can_pad = can_pad
        # Whether the run may go on from each number to the next one.
        self._joins = [all(map(can_pad, range(low + 1, high))) for low, high in pairwise(numbers)]

    def starts(self, end: int) -> Iterator[int]:
        """Yield where a run may begin that holds the numbers up to the one before place `end`, the last place first."""
        yield end - 1
        for start in range(end - 2, -1, -1):
            if not self._joins[start]:
                return
            yield start

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """Yield a run that holds the numbers of these places, as it is and filled up beyond its ends."""
        low, high = self._numbers[start], self._numbers[end - 1]
        yield low, high
        before = self._numbers[start - 1] if start else -1
        after = self._numbers[end] if end < len(self._numbers) else None
        for _ in range(_MOST_EXTRA):
            if (after is None or high + 1 < after) and self._can_pad(high + 1):
                high += 1
            elif low - 1 > before and self._can_pad(low - 1):
                low -= 1
            else:
                return
            yield low, high
