"""Cut the rows of a step into decodes: spans of consecutive sequences, padded where that is cheaper."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

# A span is extended by at most this many padding rows beyond its ends: cheap sizes lie no further apart.
_MOST_EXTRA = 3

# The lowest and the highest number of a decode.
Span = tuple[int, int]


def plan_spans(
    numbers: Sequence[int], *, can_pad: Callable[[int], bool], cost: Callable[[int], float], most: int
) -> list[Span]:
    """Return the cheapest spans of at most `most` rows that cover the ascending `numbers`, at least one.

    Numbers between the ends of a span that are not in `numbers` have to be padded. A span may cost more than its halves
    (two rows more than twice one, say), or than a larger one. `cost` returns seconds by rows.
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
    # The spans of the cheapest way to the last number, walked back.
    spans: list[Span] = []
    place = len(numbers)
    while place:
        _, place, span = best[place]
        spans.append(span)
    return spans[::-1]


class _Holes:
    """The gaps between and around the numbers, which limit the spans."""

    def __init__(self, numbers: Sequence[int], can_pad: Callable[[int], bool]) -> None:
        self._numbers = numbers
        self._can_pad = can_pad
        # For each number whether a span may continue to the next one.
        self._joins = [all(map(can_pad, range(low + 1, high))) for low, high in pairwise(numbers)]

    def starts(self, end: int) -> Iterator[int]:
        """Yield the places at which a span may begin that ends before place `end`, the last place first."""
        yield end - 1
        for start in range(end - 2, -1, -1):
            if not self._joins[start]:
                return
            yield start

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """Yield the span of these places, bare and extended beyond its ends."""
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
