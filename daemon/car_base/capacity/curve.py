"""A measured cost curve: the seconds of a model's steps on this machine, by the sizes of batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Rows of one call of llama.cpp (`n_batch`), and of one graph in it (`n_ubatch`), on which its buffers depend.

    `texts` is the most tokens of short texts that are embedded together.
    """

    call: int
    graph: int
    texts: int

    def for_sequences(self, sequences: int) -> "BatchSizes":
        """Return sizes of whole rounds: some models with states compute an equal number of rows of each sequence.

        A graph has no more rows than planned memory counts, unless there are more sequences.
        """
        call, graph = (max(1, size // sequences) * sequences for size in (self.call, self.graph))
        return BatchSizes(call, graph, self.texts)


BATCH_SIZES: Mapping[DeviceKind, BatchSizes] = {
    # A CPU computes in proportion to the rows from about 64 on, so a longer call would only delay the next decision.
    # More texts in a batch share one attention matrix, mostly masked, and pause streams for longer.
    "cpu": BatchSizes(512, 512, 64),
    # A GPU has a fixed cost a call: four graphs go out in one. The graph stays, because the planned memory counts it.
    "gpu": BatchSizes(2048, 512, 512),
}


# Sizes that are measured.
DECODE_SIZES = (1, 2, 4, 8, 16, 32)
PREFILL_SIZES = (8, 16, 64, 256)
# No machine computes a row in less than a microsecond, and none that answers at all takes an hour.
_Seconds = Annotated[float, Meta(ge=1e-6, le=3600)]
_Costs = Annotated[dict[Annotated[int, Meta(ge=1, le=256)], _Seconds], Meta(max_length=16)]
# The least of three steps of a size varies by less than this factor on cores that others leave alone.
_NOISE = 2.0


class Curve(Struct, frozen=True):
    """Seconds of a decode by rows (one of each sequence) and of a prefill by tokens of one prompt.

    `others` are the cores that other programs used meanwhile, if they kept threads of the measurement waiting: it says
    less then than the next one will.
    """

    decode: _Costs
    prefill: _Costs
    others: Annotated[float, Meta(ge=0, le=4096)] = 0.0

    @property
    def plausible(self) -> bool:
        """Whether it can have been measured: costs grow with the size, and at most in proportion, but for noise."""
        return _grows(self.decode, DECODE_SIZES) and _grows(self.prefill, PREFILL_SIZES)

    def rates(self, sequences: int) -> list[float]:
        """Return the tokens per second with 1, 2, ... sequences; figures between two measured numbers are in
        proportion.
        """
        return [round(rows / self._seconds(rows), 3) for rows in range(1, sequences + 1)] if self.decode else []

    def prompt_share(self, sequences: int) -> float:
        """Return the cost of a prompt token, at the best chunk, in answer tokens; 1 if one of both is unknown."""
        if not self.decode or not self.prefill:
            return 1.0
        prompt = min(seconds / tokens for tokens, seconds in self.prefill.items())
        return round(min(1.0, prompt * sequences / self._seconds(sequences)), 4)

    def _seconds(self, rows: int) -> float:
        """Return the seconds of a decode; beyond the measured sizes a row costs as much as at the last."""
        above = min((size for size in self.decode if size >= rows), default=None)
        below = max((size for size in self.decode if size <= rows), default=None)
        if above is None or below is None:
            nearest = min(self.decode, key=lambda size: abs(size - rows))
            return self.decode[nearest] * max(1.0, rows / nearest)
        if above == below:
            return self.decode[above]
        part = (rows - below) / (above - below)
        return self.decode[below] + part * (self.decode[above] - self.decode[below])


def _grows(costs: dict[int, float], sizes: tuple[int, ...]) -> bool:
    known = [size for size in sizes if size in costs]
    pairs = pairwise(known)
    grows = all(costs[less] / _NOISE <= costs[more] <= _NOISE * costs[less] * more / less for less, more in pairs)
    return grows and len(known) == len(costs)
