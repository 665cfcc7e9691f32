"""Seconds of steps, by rows and by the cells before them: measured at the start, learned from every step."""

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache

# Powers of two and their halves: the sizes whose seconds are known, and the lengths of chunks.
KNOTS: tuple[int, ...] = (1, *(size for power in range(1, 12) for size in (2**power, 2**power + 2 ** (power - 1))))
# From so many rows of one sequence on llama.cpp's attention computes in tiles: other code, with another price of depth.
TILE = 64
# The largest known size below, less the first row.
MOST_GUESSED = max(size for size in KNOTS if size < TILE) - 1
# A cell's price outside of tiles by that in tiles, until both were seen: it is 2.5 without AVX-512 and on AMX, else 2.
_UNTILED = 2.5
# Below so many cells a step teaches what its rows cost, deeper what the cells cost. A step cannot teach both, because
# the two would drift apart without an error to show it. A heuristic: half or twice as many change results by 1%.
_DEEP = 256
# The weight of a new observation. A heuristic: 0.1 and 0.2 are the same within 1%.
_WEIGHT = 0.2
# An observation counts as at most twice the expected cost: a stall of the machine says nothing about a size.
_MOST = 2.0
# Without a measurement a decode takes this long, and each further row this part of it: assumed, until steps were seen.
_ROW_S = 0.010
_FURTHER = 0.4
# So many observations below this part of the measured cost prove that the machine was busy when it was measured.
_SURE = 50
_OVERRATED = 0.6


class _Table:
    """Seconds of steps of one kind: what rows cost, straight between the knots, and the price of a row for each cell.

    `each` is the number of rows of one sequence, which decides whether attention uses tiles. A table is `divisible` if
    the planner may compute its rows one by one. A size beyond all measured sizes then costs at most in proportion to
    what steps show, until a step shows the size itself. Without this bound the planner would never try rows together
    once single rows become cheaper than they were measured.
    """

    def __init__(self, measured: Mapping[int, float], *, divisible: bool) -> None:
        known = dict(measured) or {1: _ROW_S, 2: _ROW_S * (1 + _FURTHER)}
        self._rows = [between(known, knot) for knot in KNOTS]
        unmeasured = range(bisect_right(KNOTS, max(known)), len(KNOTS))
        self._guessed = set(unmeasured) if divisible else set[int]()  # places of knots that no step has shown
        self._sums: dict[bool, tuple[float, float]] = {}  # By tiles or not: of seconds times depth, of depth squared.
        self._short = self._tiled = 0.0  # Prices, in seconds of a row for each cell.

    def seconds(self, rows: int, depth: int, each: int) -> float:
        """Return the seconds of a step of so many rows, each after `depth` cells."""
        low, high, share = _place(rows)
        price = self._tiled if each >= TILE else self._short
        return self._rows[low] + share * (self._rows[high] - self._rows[low]) + price * rows * depth

    def learn(self, rows: int, depth: int, each: int, seconds: float) -> None:
        """Learn what rows cost from a shallow step, the price of a cell from a deep one."""
        flat = self.seconds(rows, 0, each)
        if depth >= _DEEP:
            self._learn_price(depth, each >= TILE, max(0.0, seconds - flat) / rows)
            return
        # A price that is too high must not lower what rows cost towards nothing.
        price = self._tiled if each >= TILE else self._short
        excess = max(flat / _MOST, seconds - price * rows * depth) / flat - 1
        low, high, share = _place(rows)
        self._rows[low] *= 1 + (1 - share) * _WEIGHT * excess
        self._rows[high] *= 1 + share * _WEIGHT * excess
        self._guessed -= {low, high} if share else {low}
        for place in self._guessed:
            most = self._rows[low] * max(1.0, KNOTS[place] / KNOTS[low])
            self._rows[place] = min(self._rows[place], most)

    def _learn_price(self, depth: int, tiled: bool, seconds: float) -> None:
        """Learn a price from the seconds of a row after so many cells: deep steps count more than shallow steps."""
        above, below = self._sums.get(tiled, (0.0, 0.0))
        above, below = (1 - _WEIGHT) * above + seconds * depth, (1 - _WEIGHT) * below + depth * depth
        self._sums[tiled] = above, below
        if tiled:
            self._tiled = above / below
            self._short = self._short if False in self._sums else _UNTILED * self._tiled
        else:
            self._short = above / below
            # Tiles count as no cheaper until they were seen: a chunk would take too long if they are not.
            self._tiled = self._tiled if True in self._sums else self._short


class StepCosts:
    """Seconds of a decode with rows of several sequences, and of a batch of equal chunks of several prompts.

    Both start with the seconds measured with `threads` threads, by size. The pace is one factor for all sizes and each
    number of threads: when the machine becomes slower or faster, steps of one size correct all sizes.
    """

    def __init__(
        self,
        decode: Mapping[int, float] | None = None,
        prefill: Mapping[int, float] | None = None,
        threads: int = 1,
    ) -> None:
        single = {1: decode[1]} if decode and prefill and 1 in decode else {}
        self._decode = _Table(decode or {}, divisible=True)
        self._prefill = _Table(single | dict(prefill or {}), divisible=False)
        self._measured = ((self._decode, dict(decode or {})), (self._prefill, dict(prefill or {})))
        self._measured_with = self.threads = threads
        self._paces = {threads: 1.0}  # By number of threads.
        self._seen: dict[tuple[_Table, int], int] = {}  # Observations of measured sizes, with as many threads.

    def set_threads(self, threads: int) -> None:
        """Switch to the pace learned with this number of threads; at first it is in proportion."""
        self._paces.setdefault(threads, self._paces[self.threads] * self.threads / threads)
        self.threads = threads

    def decode(self, rows: int, depth: int = 0) -> float:
        """Return the expected seconds of a decode of so many rows, each after `depth` cells on average."""
        return self._paces[self.threads] * self._decode.seconds(rows, depth, 1)

    def prefill(self, length: int, depth: int = 0, prompts: int = 1) -> float:
        """Return the expected seconds of a batch: a chunk of this length of each of `prompts` prompts."""
        return self._paces[self.threads] * self._prefill.seconds(length * prompts, depth, length)

    def decoded(self, rows: int, seconds: float, depth: int = 0) -> None:
        """Learn from a decode."""
        self._learn(self._decode, rows, depth, 1, seconds)

    def prefilled(self, length: int, seconds: float, depth: int = 0, prompts: int = 1) -> None:
        """Learn from a batch of prompts."""
        self._learn(self._prefill, length * prompts, depth, length, seconds)

    def prompt(self, start: int, end: int) -> float:
        """Return the expected seconds of a prompt's tokens from one place to another, in chunks of tiles."""
        tokens = end - start
        return tokens / TILE * self.prefill(TILE, start + tokens // 2)

    @property
    def overrated(self) -> bool:
        """Whether steps take far less time than measured at the start with the same number of threads."""
        pace = self._paces[self._measured_with]
        return any(
            self._seen.get((table, size), 0) >= _SURE and pace * table.seconds(size, 0, 1) < _OVERRATED * seconds
            for table, measured in self._measured
            for size, seconds in measured.items()
        )

    def _learn(self, table: _Table, rows: int, depth: int, each: int, seconds: float) -> None:
        pace = self._paces[self.threads]
        expected = pace * table.seconds(rows, depth, each)
        seconds = min(seconds, _MOST * expected)
        if depth < _DEEP:
            pace *= 1 + _WEIGHT * (seconds / expected - 1)
            self._paces[self.threads] = pace
            if self.threads == self._measured_with:
                self._seen[table, rows] = self._seen.get((table, rows), 0) + 1
        table.learn(rows, depth, each, seconds / pace)


@lru_cache(maxsize=KNOTS[-1])
def _place(rows: int) -> tuple[int, int, float]:
    """Return the places of the knots on both sides of a number of rows, and how far it is from the first to the second.

    Beyond the last knot rows cost in proportion, as between the last two.
    """
    low = min(bisect_right(KNOTS, rows), len(KNOTS) - 1) - 1
    return low, low + 1, (rows - KNOTS[low]) / (KNOTS[low + 1] - KNOTS[low])


def between(known: Mapping[int, float], rows: int) -> float:
    """Return the seconds of rows on the straight line between known sizes.

    Below the smallest, rows cost as much as that. Beyond the largest a row costs what the steepest line from a smaller
    size to it says, and at most its share: a size that was measured on a busy machine flattens its own line alone.
    """
    sizes = sorted(known)
    last = sizes[-1]
    if rows <= sizes[0]:
        return known[sizes[0]]
    if rows > last:
        slopes = [(known[last] - known[size]) / (last - size) for size in sizes[:-1]]
        slope = max(0.0, min(known[last] / last, max(slopes, default=known[last] / last)))
        return known[last] + slope * (rows - last)
    above = next(size for size in sizes if size >= rows)
    below = max(size for size in sizes if size <= rows)
    share = 0.0 if above == below else (rows - below) / (above - below)
    return known[below] + share * (known[above] - known[below])
