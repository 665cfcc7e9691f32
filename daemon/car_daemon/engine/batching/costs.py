"""Costs of steps, measured at the start and learned from then on: decode by rows, prefill by tokens."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

CHUNKS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# Equal chunks have to read the rest of a prompt in less than this part of the time of the longest ones.
_SOONER = 0.99
# From this many tokens of one sequence on llama.cpp's attention uses tiles: other code with other costs.
_TILE = 64
# A cost that was learned at less than this part of a depth says little about it.
_NEAR = 0.5
# A chunk beside decoders may exceed its time by this part of the smallest chunk's: costs vary from step to step, and a
# step should exceed its target by at most one smallest chunk.
_EXCESS = 0.75
# Where the smallest chunk takes more than this many times the target of a step, it is cut in half.
_MOST_TARGETS = 2.0
# Beside decoders a token of a prompt should take at most this many times as long as alone, decodes included.
_SLOWEST = 2.0
# The chunk by which a prompt's cost a token is counted, where no step is planned.
_TYPICAL = 128
# The cost of fewer tokens at the start of a prompt is unknown: deep in a prompt they only bound the cost of a cell.
_LEAST_LEARNED = CHUNKS[0] // 2
# Weight of a new observation against the known cost: costs grow with the context and drift with load.
_WEIGHT = 0.2
# A faster decode than expected says more than a slower one, which other programs can cause.
_WEIGHT_OF_LESS = 0.5
# The least cost of a size grows by this factor with each observation, because costs grow with the context.
_FORGOTTEN = 1.001
# A size that costs this many times its least was observed in a stall, or deeper in the context.
_STALLED = 1.05
# An observation counts as at most this multiple of the expected cost.
_MOST_GROWTH = 2.0
# Below this many cells a chunk counts as at the start of a prompt.
_SHALLOW = 256
# So many cells change little of what a decode costs.
_LITTLE = 64
# This many observations at this fraction of the measured cost prove that it was measured on a busy machine.
_SURE = 50
_FAR_LESS = 0.6
# Assumed cost of a row before anything is known, in seconds.
_PRIOR = 0.010
# Assumed cost of a second row as a fraction of the first, until it is observed.
_SLOPE = 0.4


class _Least(NamedTuple):
    """The least cost of a size in seconds, and the depth at which it was last observed."""

    seconds: float
    depth: int


class CostCurve:
    """Seconds by size: interpolated between known sizes, beyond them by the slope of these, or by the prior one.

    A size that was only measured at the start moves with the nearest observed one: the machine may have been busy while
    all of them were measured.
    """

    def __init__(self, slope: float, measured: Mapping[int, float], weight_of_less: float = _WEIGHT) -> None:
        self._slope = slope
        self._weight_of_less = weight_of_less
        self._measured = dict(measured)  # At the start.
        self._sizes = sorted(measured)  # Known sizes, ascending.
        self._seconds = dict(measured)
        self._seen: Counter[int] = Counter()  # Observations by size.
        self._least: dict[int, _Least] = {}  # Of each observed size.

    def observe(self, size: int, seconds: float, depth: int = 0) -> None:
        """Learn from the time of one step, `depth` being the number of cells to which its rows attend on average."""
        self._seen[size] += 1
        if self._sizes:
            # Bounded, because a stall of the machine says nothing about the size.
            seconds = min(seconds, _MOST_GROWTH * self.estimate(size))
        known = self._seconds.get(size)
        if known is None:
            self._sizes.insert(bisect_left(self._sizes, size), size)
            self._seconds[size] = seconds
        else:
            weight = _WEIGHT if seconds > known else self._weight_of_less
            self._seconds[size] = known + weight * (seconds - known)
        self._least[size] = _Least(min(self._seconds[size], _FORGOTTEN * self._least_at(size, depth)), depth)
        if size not in self._measured:
            return
        both = [each for each in self._measured if each in self._seen]
        for other in self._measured.keys() - self._seen.keys():
            near = _nearest(both, other)
            self._seconds[other] = self._measured[other] * self._seconds[near] / self._measured[near]

    def seen(self, size: int) -> int:
        """Return how often a size was observed since the start."""
        return self._seen[size]

    def stalled(self, depth: int) -> bool:
        """Whether an observed size costs far more than it did at this depth: a stall may be over since."""
        return any(self._seconds[size] > _STALLED * self._least_at(size, depth) for size in self._least)

    def least(self, size: int, depth: int) -> float:
        """Return the seconds of a step of this size at this depth by its least cost, from before a stall."""
        return min(self.estimate(size), self._least_at(size, depth))

    def _least_at(self, size: int, depth: int) -> float:
        """Return the least seconds of a size; infinity where it was observed at far less than this depth, or never."""
        known = self._least.get(size)
        return known.seconds if known is not None and known.depth + _LITTLE >= _NEAR * depth else inf

    @property
    def overrated(self) -> bool:
        """Whether a size takes far less time than measured at the start, when the machine must have been busy."""
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
            last = self._sizes[-1]
            return self._seconds[last] + self._slope_beyond() * (size - last)
        above = self._sizes[place]
        if above == size or place == 0:
            return self._seconds[above]
        below = self._sizes[place - 1]
        fraction = (size - below) / (above - below)
        return self._seconds[below] + fraction * (self._seconds[above] - self._seconds[below])

    def _slope_beyond(self) -> float:
        """Return the seconds of a further row: at most in proportion, and less where a launch has a fixed cost.

        The steepest line from a known size to the largest: a size that was measured on a busy machine flattens only
        its own, and a fixed cost is at most that of the smallest.
        """
        *smaller, last = self._sizes
        most = self._slope / (1 + self._slope * (last - 1)) * self._seconds[last]
        slopes = [(self._seconds[last] - self._seconds[size]) / (last - size) for size in smaller]
        return max(0.0, min(most, max(slopes, default=most)))

    def scaled(self, factor: float) -> "CostCurve":
        """Return a curve that starts with `factor` times the known costs, as if they had been measured."""
        seconds = {size: seconds * factor for size, seconds in self._seconds.items()}
        return CostCurve(self._slope, seconds, self._weight_of_less)


class _Factors(NamedTuple):
    """The cost of a cell to a token in tiles by that outside of them, and the reverse, until it is observed."""

    tiled: float
    untiled: float


# Tiles are not assumed to be cheaper, because a step would be too long where they are not.
_MOST_FACTORS = _Factors(tiled=1.0, untiled=2.5)
_LEAST_FACTORS = _Factors(tiled=0.4, untiled=1.0)


class _PairCost(NamedTuple):
    """Seconds of a token for each cell before it, and the depth at which they were learned."""

    seconds: float
    depth: int


class PrefillCosts:
    """Seconds of chunks by length and depth, the number of cells before them, to which every token attends."""

    def __init__(self, shallow: CostCurve, pairs: Mapping[int, _PairCost]) -> None:
        self._shallow = shallow  # At the start of prompts, by tokens.
        self._pairs = dict(pairs)  # By the size of the chunk: llama.cpp has other code for many tokens.

    def observe(self, length: int, seconds: float, depth: int = 0, prompts: int = 1) -> None:
        """Learn from the time of one batch: a chunk of this length of each of `prompts` prompts."""
        tokens, size = length * prompts, _size_of(length)
        if depth < _SHALLOW:
            deep = self._per_pair(size, depth) * tokens * depth
            self._shallow.observe(tokens, max(seconds - deep, seconds / _MOST_GROWTH))
            return
        if length < _LEAST_LEARNED:
            # Only a bound, because a stall that was learned as the cost would never be corrected.
            if (most := seconds / (tokens * depth)) < self._per_pair(size, depth):
                self._pairs[size] = _PairCost(most, depth)
            return
        seen = max(0.0, seconds - self._shallow.estimate(tokens)) / (tokens * depth)
        # Near the start of a prompt the difference can be 0, which says nothing.
        known = self._per_pair(size, depth) or seen
        seen = min(seen, _MOST_GROWTH * known)
        learned_at = self._pairs[size].depth if size in self._pairs else 0
        weight = max(_WEIGHT, 1 - learned_at / depth)
        self._pairs[size] = _PairCost(known + weight * (seen - known), depth)
        self._raise_halves(length, depth)

    @property
    def overrated(self) -> bool:
        """Whether chunks take far less time than measured at the start."""
        return self._shallow.overrated

    def estimate(self, length: int, depth: int = 0, prompts: int = 1) -> float:
        """Return the expected seconds of a batch, at most those of its two halves one after the other."""
        whole = self._whole(length, depth, prompts)
        if length * prompts < 2 * CHUNKS[0]:
            return whole
        half = ((length + 1) // 2, depth, 1) if prompts == 1 else (length, depth, (prompts + 1) // 2)
        return min(whole, 2 * self.estimate(*half))

    def token(self, length: int, depth: int) -> float:
        """Return the expected seconds of one token in a chunk of this length, without a look at its halves."""
        return self._whole(length, depth) / length

    def at_least(self, length: int, depth: int) -> float:
        """Return the least seconds of a chunk that what is known allows."""
        return self._shallow.estimate(length) + self._per_pair(_size_of(length), depth, _LEAST_FACTORS) * length * depth

    def scaled(self, factor: float) -> "PrefillCosts":
        """Return costs that start with `factor` times the known ones."""
        pairs = {size: _PairCost(each.seconds * factor, each.depth) for size, each in self._pairs.items()}
        return PrefillCosts(self._shallow.scaled(factor), pairs)

    def _whole(self, length: int, depth: int, prompts: int = 1) -> float:
        """Return the expected seconds of a batch regardless of its halves."""
        tokens = length * prompts
        return self._shallow.estimate(tokens) + self._per_pair(_size_of(length), depth) * tokens * depth

    def _raise_halves(self, length: int, depth: int) -> None:
        """Let each half of a chunk cost at least half as much: if it looks cheaper, its cost is out of date.

        Otherwise the chunk would look as cheap as its halves and be chosen in their place, and they would never be
        observed again.
        """
        seconds = self._whole(length, depth)
        while (length := (length + 1) // 2) >= CHUNKS[0]:
            known = self._whole(length, depth)
            seconds = max(seconds / 2, known)
            if seconds > known:
                size = _size_of(length)
                dearer = self._per_pair(size, depth) + (seconds - known) / (length * depth)
                self._pairs[size] = _PairCost(dearer, depth)

    def _per_pair(self, size: int, depth: int, factors: _Factors = _MOST_FACTORS) -> float:
        """Return the cost of a token of a chunk of this size for each cell before it.

        A cost that was learned far nearer to the start of a prompt is inexact: it counts as at least the cost of the
        nearest size that was observed at this depth. A size that was never observed costs what the nearest one costs,
        times a factor where that is in tiles and the size is not, or the reverse.
        """
        own = self._pairs.get(size)
        if own is not None and own.depth >= _NEAR * depth:
            return own.seconds
        near = [each for each, pair in self._pairs.items() if pair.depth >= _NEAR * depth]
        known = near or list(self._pairs)
        if not known:
            return 0.0
        tiled = size >= _TILE
        alike = [each for each in known if (each >= _TILE) == tiled]
        guess = self._pairs[_nearest(alike or known, size)].seconds
        if not alike:
            guess *= factors.tiled if tiled else factors.untiled
        return guess if own is None else max(own.seconds, guess)


class PrefillTime(NamedTuple):
    """Seconds for a prefill batch; beside decoders also the decode before it, the target, and what is left of that."""

    seconds: float
    decoded: float = 0.0
    left: float = 0.0
    target: float = inf


class StepCosts:
    """Costs of a decode with one row of each of k sequences, and of a prefill batch.

    Both start with the costs measured with `threads`, in seconds by size, and follow the observed steps.
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
        self.threads = threads  # The current number.
        self._learned = {threads: (self.decode, self.prefill)}  # By number of threads.

    def set_threads(self, threads: int) -> None:
        """Switch to the costs learned with this number of threads; at first they scale with the number."""
        if threads not in self._learned:
            factor = self.threads / threads
            self._learned[threads] = self.decode.scaled(factor), self.prefill.scaled(factor)
        self.threads = threads
        self.decode, self.prefill = self._learned[threads]

    @property
    def overrated(self) -> bool:
        """Whether steps take far less time than measured at the start with the same number of threads."""
        return any(costs.overrated for costs in self._learned[self._measured_with])

    def prompt(self, start: int, end: int) -> float:
        """Return the expected seconds of a prompt's tokens from one place to another: more for more tokens, always."""
        return (end - start) * self.prefill.token(_TYPICAL, (start + end) // 2)

    def chunk(self, time: PrefillTime, remaining: int, most: int, depth: int = 0) -> int:
        """Return how many prompt tokens to prefill in about the given time: all that remain, or a quantized chunk.

        Equal sizes let llama.cpp reuse its graph. With chunks below the smallest one a prompt would never end.
        """
        cost = self.prefill.estimate
        if remaining <= most and cost(remaining, depth) <= time.seconds:
            return remaining
        affordable = (size for size in reversed(CHUNKS) if size <= most and cost(size, depth) <= time.seconds)
        length = min(remaining, next(affordable, min(self._smallest(time, depth), most)))
        longest = self._paced(length, time, min(remaining, most), depth) if time.decoded else length
        return self._evened(longest, remaining, depth)

    def _evened(self, longest: int, remaining: int, depth: int) -> int:
        """Return a shorter length whose equal chunks read the rest sooner in as many steps; otherwise the longest.

        What the longest leaves to the last chunk may be so short that a token of it is dear.
        """
        steps = -(-remaining // longest)
        equal = min(longest, -(-remaining // (steps * CHUNKS[0])) * CHUNKS[0])
        sooner = self._rest(equal, remaining, depth) < _SOONER * self._rest(longest, remaining, depth)
        return equal if sooner else longest

    def _rest(self, length: int, remaining: int, depth: int) -> float:
        """Return the expected seconds of the rest of a prompt in chunks of this length, the last one shorter."""
        chunks, last = divmod(remaining, length)
        whole = remaining - last
        seconds = chunks * self.prefill.estimate(length, depth + (whole - length) // 2)
        return seconds + (self.prefill.estimate(last, depth + whole) if last else 0.0)

    def _smallest(self, time: PrefillTime, depth: int) -> int:
        """Return the length of the smallest chunk: half of the usual one where that far exceeds the target."""
        exceeds = self.prefill.estimate(CHUNKS[0], depth) > _MOST_TARGETS * time.target
        return _LEAST_LEARNED if exceeds else CHUNKS[0]

    def _paced(self, length: int, time: PrefillTime, most: int, depth: int) -> int:
        """Return a longer chunk where the prompt would be read at less than half of its pace alone.

        It may take longer than what the decode leaves of the target, by a part of what the smallest chunk takes.
        """
        cost, at_least = self.prefill.estimate, self.prefill.at_least
        # The smallest chunk costs at most what a longer one does, also where a stall was learned as its cost.
        limit = time.left + _EXCESS * min(at_least(size, depth) for size in CHUNKS)
        longer = [size for size in CHUNKS if length < size <= most and cost(size, depth) <= limit]
        paces = {size: (time.decoded + cost(size, depth)) / size for size in (length, *longer)}
        alone = min(at_least(size, depth) / size for size in CHUNKS)
        enough = (size for size, pace in paces.items() if pace <= _SLOWEST * alone)
        return next(enough, min(paces, key=paces.__getitem__))


def _size_of(length: int) -> int:
    """Return the largest quantum within a chunk, because llama.cpp switches code at certain sizes."""
    return CHUNKS[max(0, bisect_right(CHUNKS, length) - 1)]


def _nearest(sizes: Iterable[int], size: int) -> int:
    """Return the size with the smallest ratio to this one."""
    return min(sizes, key=lambda other: max(other / size, size / other))
