"""What a step costs, measured at first and learned from then on: decode by rows, prefill by tokens."""

from bisect import bisect_left
from collections.abc import Mapping

CHUNKS = (16, 32, 64, 128, 256, 512)
# How much of a new observation counts against what is known: costs grow with the context and drift with load.
_WEIGHT = 0.2
# One observation counts at most this much more than what was expected.
_MOST_GROWTH = 2.0
# Before anything is known a step is taken to cost this much per row, in seconds.
_PRIOR = 0.010
# The share of one row's cost that a second row is taken to add, until it was seen.
_SLOPE = 0.4


class CostCurve:
    """Seconds over a size, between the points seen; beyond them by the prior slope."""

    def __init__(self, slope: float, measured: Mapping[int, float]) -> None:
        self._slope = slope
        # Mutable state: the sizes seen, ascending, and what each of them costs.
        self._sizes = sorted(measured)
        self._seconds = dict(measured)

    def observe(self, size: int, seconds: float) -> None:
        """Take one measured step into account."""
        if self._sizes:
            # A stall of the machine says nothing about the size that met it.
            seconds = min(seconds, _MOST_GROWTH * self.estimate(size))
        known = self._seconds.get(size)
        if known is None:
            self._sizes.insert(bisect_left(self._sizes, size), size)
            self._seconds[size] = seconds
        else:
            self._seconds[size] = known + _WEIGHT * (seconds - known)

    def estimate(self, size: int) -> float:
        """Return the expected seconds of a step of this size."""
        if not self._sizes:
            return _PRIOR * (1 + self._slope * (size - 1))
        place = bisect_left(self._sizes, size)
        if place == len(self._sizes):
            return self._beyond(self._sizes[-1], size)
        above = self._sizes[place]
        if above == size or place == 0:
            return self._seconds[above]
        below = self._sizes[place - 1]
        share = (size - below) / (above - below)
        return self._seconds[below] + share * (self._seconds[above] - self._seconds[below])

    def _beyond(self, last: int, size: int) -> float:
        return self._seconds[last] * (1 + self._slope * (size - last) / (1 + self._slope * (last - 1)))


class StepCosts:
    """The two curves that plan a step: one row of each of k sequences, and a chunk of one prompt.

    They begin with what was measured, seconds by size, and follow the steps seen.
    """

    def __init__(self, decode: Mapping[int, float] | None = None, prefill: Mapping[int, float] | None = None) -> None:
        self.decode = CostCurve(_SLOPE, decode or {})
        self.prefill = CostCurve(1.0, prefill or {})

    def chunk_within(self, seconds: float, remaining: int, most: int) -> int:
        """Return how many prompt tokens to prefill in about `seconds`: all that remain, or a quantized chunk.

        Equal sizes let llama.cpp reuse its graph; below the smallest chunk a prompt would never end.
        """
        if remaining <= most and self.prefill.estimate(remaining) <= seconds:
            return remaining
        affordable = [size for size in CHUNKS if size <= most and self.prefill.estimate(size) <= seconds]
        return min(remaining, max(affordable, default=min(CHUNKS[0], most)))
