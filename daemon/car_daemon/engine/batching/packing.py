"""Decode batches: the rows of all decoders, packed by the costs of sizes."""

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.sequence import Sequence, mean_cells
from car_daemon.engine.batching.spans import Span, plan_spans
from car_daemon.engine.batching.table import SequenceTable

# Costs drift, so the batches of the same decoders are planned again after this many steps.
_PLAN_AGAIN_EVERY = 16
# A size that was slow once and is avoided since would never be measured again: it is avoided only after this many
# observations, and tried again.
_TRIES = 3
# The tries come after 2, 4, 8, ... steps, because a stall of the machine is short, and after this many doublings at the
# last interval.
_MOST_DOUBLINGS = 5
# Plans whose steps without a try are counted; beyond that all are tried again soon.
_MOST_AVOIDED = 64
# Observed costs vary by some percent: a plan has to save more than that.
WORTH_IT = 0.95

_by_number = itemgetter(0)


class DecodeBatch:
    """One decode: a row of each of these sequences, and padding rows in others between and beside them."""

    def __init__(self, sequences: list[Sequence], padding: list[int]) -> None:
        self.sequences = sequences
        self.padding = padding
        members: list[tuple[int, Sequence | None]] = [(sequence.number, sequence) for sequence in sequences]
        members += [(number, None) for number in padding]
        # Sequences by ascending number, None for padding: llama.cpp splits batches in another order.
        self.members = sorted(members, key=_by_number)
        self.rows = len(members)  # With those for guesses.
        self.guessed = 0  # Rows for guesses of each sequence, beside its first.

    def let_guess(self, guessed: int) -> None:
        """Give each sequence so many rows for guesses."""
        self.guessed = guessed
        self.rows = len(self.members) * (1 + guessed)


class _Avoided(NamedTuple):
    """Steps since batches were tried last, or began to look worse, and the number of tries since they did."""

    steps: int = 0
    tries: int = 0

    @property
    def is_due(self) -> bool:
        """Whether to try them."""
        return self.steps >= 2 << min(self.tries, _MOST_DOUBLINGS)


class DecodePacker:
    """Pack rows into batches, and keep the plans while the same sequences decode.

    `pads` is False where the model's memory cannot drop the cell of a padding row.
    """

    def __init__(self, costs: StepCosts, batch_tokens: int, *, pads: bool) -> None:
        self._costs = costs
        self._batch_tokens = batch_tokens
        self._pads = pads
        self._decoding: list[Sequence] = []  # The sequences of the plans below.
        self._cheapest: list[DecodeBatch] = []
        self._fewest: list[DecodeBatch] = []
        self._hopeful: list[DecodeBatch] = []  # The cheapest if each size cost what it did before its last stall.
        self._fewest_spans: list[Span] = []
        self._padding: set[int] = set()  # Sequences that a plan pads.
        self._age = 0  # Decodes since the plans were made.
        self._depth = 0  # Cells of a decoder, when the plans were made.
        self._avoided: dict[tuple[int, ...], _Avoided] = {}  # By the sizes of batches that look worse.
        self.trying = False  # Whether the last batches look worse: a decode with guesses would not show their cost.

    def pack(self, decoding: list[Sequence], table: SequenceTable) -> list[DecodeBatch]:
        """Return the batches for one row of every decoder; reproducible requests have a batch each."""
        self.trying = False
        for sequence in decoding:
            if sequence.grid is not None:
                alone = [DecodeBatch([each], []) for each in decoding if each.grid is not None]
                return alone + self.pack([each for each in decoding if each.grid is None], table)
        if not self._pads or len(decoding) <= 1:
            # llama.cpp does not split batches by number for models that cannot drop a tail.
            return [DecodeBatch(decoding, [])] if decoding else []
        for batch in (*self._fewest, *self._cheapest, *self._hopeful):
            if batch.guessed:
                batch.let_guess(0)
        unchanged = decoding == self._decoding and all(map(table.can_pad, self._padding))
        if not unchanged:
            self._decoding = decoding
            # Few batches before few rows, but one batch more before long padding.
            self._fewest_spans = self._spans(table, lambda rows: 1 + rows / 8)
            self._fewest = _batches(decoding, self._fewest_spans)
        if not unchanged or self._age == _PLAN_AGAIN_EVERY:
            self._age = 0
            self._cheapest = self._planned(table, self._costs.decode.estimate)
            self._depth = mean_cells(decoding)
            stalled = self._costs.decode.stalled(self._depth)
            self._hopeful = self._planned(table, self._least) if stalled else self._cheapest
            plans = (*self._fewest, *self._cheapest, *self._hopeful)
            self._padding = {number for batch in plans for number in batch.padding}
        self._age += 1
        return self._fewest if self._cheapest is self._fewest is self._hopeful else self._chosen()

    def _chosen(self) -> list[DecodeBatch]:
        """Return the better batches, and now and then others, so that the costs of these stay known."""
        known = all(self._costs.decode.seen(size) >= _TRIES for size in _sizes(self._fewest))
        saves = known and self.seconds(self._cheapest) < WORTH_IT * self.seconds(self._fewest)
        better = self._cheapest if saves else self._fewest
        self._avoided.pop(_sizes(better), None)
        if len(self._avoided) > _MOST_AVOIDED:
            self._avoided.clear()
        others = [self._fewest] if saves else []
        promises = known and self._hopeful not in (better, *others)
        if promises and self._least_seconds(self._hopeful) < WORTH_IT * self.seconds(better):
            others.append(self._hopeful)
        return next(filter(self._tries, others), better)

    def _tries(self, other: list[DecodeBatch]) -> bool:
        """Return whether batches that look worse are decoded in this step."""
        steps, tries = self._avoided.get(_sizes(other), _Avoided())
        avoided = _Avoided(steps + 1, tries)
        self.trying = avoided.is_due
        self._avoided[_sizes(other)] = _Avoided(0, tries + 1) if self.trying else avoided
        return self.trying

    def seconds(self, batches: list[DecodeBatch]) -> float:
        """Return the expected time of these decodes."""
        return sum(self._costs.decode.estimate(batch.rows) for batch in batches)

    def _least_seconds(self, batches: list[DecodeBatch]) -> float:
        """Return the time of these decodes if each size cost what it did before its last stall."""
        return sum(map(self._least, _sizes(batches)))

    def _least(self, rows: int) -> float:
        return self._costs.decode.least(rows, self._depth)

    def _planned(self, table: SequenceTable, cost: Callable[[int], float]) -> list[DecodeBatch]:
        """Return the batches that are the cheapest at these costs."""
        spans = self._spans(table, cost)
        return self._fewest if spans == self._fewest_spans else _batches(self._decoding, spans)

    def _spans(self, table: SequenceTable, cost: Callable[[int], float]) -> list[Span]:
        numbers = [sequence.number for sequence in self._decoding]
        return plan_spans(numbers, can_pad=table.can_pad, cost=cost, most=self._batch_tokens)


def _sizes(batches: list[DecodeBatch]) -> tuple[int, ...]:
    return tuple(len(batch.members) for batch in batches)


def _batches(decoding: list[Sequence], spans: list[Span]) -> list[DecodeBatch]:
    """Return the batches of these spans: sequences that do not decode are padded."""
    decoders = {sequence.number: sequence for sequence in decoding}
    batches = []
    for low, high in spans:
        numbers = range(low, high + 1)
        sequences = [decoders[number] for number in numbers if number in decoders]
        batches.append(DecodeBatch(sequences, [number for number in numbers if number not in decoders]))
    return batches
