"""What a step costs, measured at first and learned from then on: decode by rows, prefill by tokens."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

CHUNKS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# From so many tokens of one sequence on llama.cpp's attention works in tiles, which is other code with other prices.
_TILE = 64
# What a cell costs a token outside of tiles, against within them, until it was seen. Tiles that were not seen are not
# taken to be cheaper: a step would be too long where they are not.
_UNTILED = 1.5
# A tile may take this share of a step's target more than there is time, where a token of a shorter chunk costs at least
# so many times as much.
_STRETCH = 0.5
_QUICKER = 1.25
# What the smallest chunk may be halved to, again and again, deep in a prompt.
_LEAST = 2
# What fewer tokens cost at the begin of a prompt is not known: deep in one they only show what a cell costs at most.
_LEAST_LEARNED = CHUNKS[0] // 2
# How much of a new observation counts against what is known: costs grow with the context and drift with load.
_WEIGHT = 0.2
# A step of decoders that took less than was known tells more than one that took longer, which other programs can cause.
_WEIGHT_OF_LESS = 0.5
# One observation counts at most this much more than what was expected.
_MOST_GROWTH = 2.0
# Below this many cells a chunk counts as the begin of a prompt.
_SHALLOW = 256
# A chunk that costs so many times what it does at the begin of a prompt is deep in it.
_DEEP = 2.0
# So many observations of this share of what was measured leave no doubt that it was measured on a busy machine.
_SURE = 50
_FAR_LESS = 0.6
# Before anything is known a step is taken to cost this much per row, in seconds.
_PRIOR = 0.010
# The share of one row's cost that a second row is taken to add, until it was seen.
_SLOPE = 0.4


class CostCurve:
    """Seconds over a size, between the points known; beyond them by the prior slope.

    A size that was only measured at first moves with the nearest one that was observed: the machine may have been busy
    when they were measured, all of them together.
    """

    def __init__(self, slope: float, measured: Mapping[int, float], weight_of_less: float = _WEIGHT) -> None:
        self._slope = slope
        self._weight_of_less = weight_of_less
        # Mutable state: what was measured at first; the sizes known, ascending, what each of them costs, and how often
        # it was observed.
        self._measured = dict(measured)
        self._sizes = sorted(measured)
        self._seconds = dict(measured)
        self._seen: Counter[int] = Counter()

    def observe(self, size: int, seconds: float) -> None:
        """Take one measured step into account."""
        self._seen[size] += 1
        if self._sizes:
            # A stall of the machine says nothing about the size that met it.
            seconds = min(seconds, _MOST_GROWTH * self.estimate(size))
        known = self._seconds.get(size)
        if known is None:
            self._sizes.insert(bisect_left(self._sizes, size), size)
            self._seconds[size] = seconds
        else:
            weight = _WEIGHT if seconds > known else self._weight_of_less
            self._seconds[size] = known + weight * (seconds - known)
        if size in self._measured:
            self._move_what_was_only_measured()

    def seen(self, size: int) -> int:
        """Return how often a size was observed; what was measured at first does not count."""
        return self._seen[size]

    @property
    def overrated(self) -> bool:
        """Whether a size takes far less than was measured at first: the machine was busy then."""
        return any(
            self._seen[size] >= _SURE and self._seconds[size] < _FAR_LESS * seconds
            for size, seconds in self._measured.items()
        )

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

    def scaled(self, factor: float) -> "CostCurve":
        """Return a curve that begins with `factor` times what is known, as if it had been measured."""
        seconds = {size: seconds * factor for size, seconds in self._seconds.items()}
        return CostCurve(self._slope, seconds, self._weight_of_less)

    def _move_what_was_only_measured(self) -> None:
        both = [size for size in self._measured if size in self._seen]
        for size in self._measured.keys() - self._seen.keys():
            if both:
                near = _nearest(both, size)
                self._seconds[size] = self._measured[size] * self._seconds[near] / self._measured[near]

    def _beyond(self, last: int, size: int) -> float:
        return self._seconds[last] * (1 + self._slope * (size - last) / (1 + self._slope * (last - 1)))


class PrefillCosts:
    """Seconds of chunks of one length by their depth: the cells before them, which every token attends to."""

    def __init__(self, shallow: CostCurve, pair_seconds: Mapping[int, float]) -> None:
        # Mutable state: the curve of all tokens at the begin of prompts, and what a token costs for each cell before
        # it, by the size of its chunk: llama.cpp has other code for many tokens of one sequence at once.
        self._shallow = shallow
        self._pair_seconds = dict(pair_seconds)

    def observe(self, length: int, seconds: float, depth: int = 0, prompts: int = 1) -> None:
        """Take one measured batch into account: a chunk of this length of each of so many prompts."""
        tokens = length * prompts
        if depth < _SHALLOW:
            self._shallow.observe(tokens, seconds)
            return
        size = _size_of(length)
        if length < _LEAST_LEARNED:
            self._bound(size, seconds / (tokens * depth))
            return
        seen = max(0.0, seconds - self._shallow.estimate(tokens)) / (tokens * depth)
        # Not far from the begin a price can come out as nothing: then nothing is known.
        known = self._pair_seconds.get(size) or seen
        seen = min(seen, _MOST_GROWTH * known)
        self._pair_seconds[size] = known + _WEIGHT * (seen - known)
        self._raise_halves(length, depth)

    def _bound(self, size: int, most: float) -> None:
        """Have a cell cost no more than that: a stall that was taken for its price would never be corrected."""
        if most < self._per_pair(size):
            self._pair_seconds[size] = most

    @property
    def overrated(self) -> bool:
        """Whether chunks take far less than was measured at first."""
        return self._shallow.overrated

    def estimate(self, length: int, depth: int = 0, prompts: int = 1) -> float:
        """Return the expected seconds of such a batch: at most what its halves would take one after the other."""
        whole = self._whole(length, depth, prompts)
        if length * prompts < 2 * CHUNKS[0]:
            return whole
        half = ((length + 1) // 2, depth, 1) if prompts == 1 else (length, depth, (prompts + 1) // 2)
        return min(whole, 2 * self.estimate(*half))

    def scaled(self, factor: float) -> "PrefillCosts":
        """Return costs that begin with `factor` times what is known."""
        pair_seconds = {size: seconds * factor for size, seconds in self._pair_seconds.items()}
        return PrefillCosts(self._shallow.scaled(factor), pair_seconds)

    def _whole(self, length: int, depth: int, prompts: int = 1) -> float:
        """Return what a batch costs by itself, whatever its halves do."""
        tokens = length * prompts
        return self._shallow.estimate(tokens) + self._per_pair(length) * tokens * depth

    def _raise_halves(self, length: int, depth: int) -> None:
        """Have half a chunk, and half of that, cost at least half as much: if it looks cheaper it is known too little.

        Else the chunk would look as cheap as its halves, be taken in their place, and they would never be seen again.
        """
        seconds = self._whole(length, depth)
        while (length := (length + 1) // 2) >= CHUNKS[0]:
            known = self._whole(length, depth)
            seconds = max(seconds / 2, known)
            if seconds > known:
                self._pair_seconds[_size_of(length)] = self._per_pair(length) + (seconds - known) / (length * depth)

    def _per_pair(self, length: int) -> float:
        size, prices = _size_of(length), self._pair_seconds
        if not prices or size in prices:
            return prices.get(size, 0.0)
        tiled = size >= _TILE
        alike = [known for known in prices if (known >= _TILE) == tiled]
        price = prices[_nearest(alike or prices, size)]
        return price if alike or tiled else _UNTILED * price


class StepCosts:
    """What plans a step: the cost of one row of each of k sequences, and of a chunk of one prompt.

    Both begin with what was measured with `threads`, seconds by size, and follow the steps seen.
    """

    def __init__(
        self,
        decode: Mapping[int, float] | None = None,
        prefill: Mapping[int, float] | None = None,
        threads: int = 1,
    ) -> None:
        self.decode = CostCurve(_SLOPE, decode or {}, _WEIGHT_OF_LESS)
        self.prefill = PrefillCosts(CostCurve(1.0, prefill or {}), {})
        self._measured_with = threads
        # Mutable state: the threads now, and what was learned with each number of them.
        self.threads = threads
        self._learned = {threads: (self.decode, self.prefill)}

    def compute_with(self, threads: int) -> None:
        """Go on with what was learned with so many threads; at first as if threads were all that counts."""
        if threads not in self._learned:
            factor = self.threads / threads
            self._learned[threads] = self.decode.scaled(factor), self.prefill.scaled(factor)
        self.threads = threads
        self.decode, self.prefill = self._learned[threads]

    @property
    def overrated(self) -> bool:
        """Whether steps take far less than was measured at first, with as many threads."""
        return any(costs.overrated for costs in self._learned[self._measured_with])

    def chunk_within(self, seconds: float, remaining: int, most: int, depth: int = 0, *, patience: float) -> int:
        """Return how many prompt tokens to prefill in about `seconds`: all that remain, or a quantized chunk.

        Equal sizes let llama.cpp reuse its graph. Below the smallest chunk a prompt would never end; but it is halved
        as long as it would take longer than that and than `patience`, and most of that for the cells before it.
        """
        cost = self.prefill.estimate
        if remaining <= most and cost(remaining, depth) <= seconds:
            return remaining
        affordable = (size for size in reversed(CHUNKS) if size <= most and cost(size, depth) <= seconds)
        least = CHUNKS[0]
        while least > _LEAST and cost(least, depth) > max(seconds, patience, _DEEP * cost(least)):
            least //= 2
        length = min(remaining, next(affordable, min(least, most)))
        if depth >= _SHALLOW and length < _TILE <= min(remaining, most):
            return self._tiled(length, depth, seconds + _STRETCH * patience)
        return length

    def _tiled(self, length: int, depth: int, seconds: float) -> int:
        """Return this length, or that of a tile where it takes no more than that and a token of it costs far less."""
        short, tile = self.prefill.estimate(length, depth), self.prefill.estimate(_TILE, depth)
        return _TILE if tile <= seconds and tile / _TILE * _QUICKER <= short / length else length


def _size_of(length: int) -> int:
    """Return the largest quantum that a chunk reaches: what llama.cpp has other code for begins with a size."""
    return CHUNKS[max(0, bisect_right(CHUNKS, length) - 1)]


def _nearest(sizes: Iterable[int], size: int) -> int:
    """Return which of the sizes differs by the least factor."""
    return min(sizes, key=lambda other: max(other / size, size / other))
