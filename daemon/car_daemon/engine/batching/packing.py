"""Decode batches: the rows of all decoders, packed by the costs of sizes."""

from collections.abc import Callable
from operator import itemgetter

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.batching.spans import Span, plan_spans
from car_daemon.engine.batching.table import SequenceTable

# Costs drift, so the batches of the same decoders are planned again after this many steps.
_PLAN_AGAIN_EVERY = 16
# A size that was slow once and is avoided since would never be measured again: it is avoided only after this many
# observations, and tried again at this interval of steps.
_TRIES = 3
_TRY_AGAIN_EVERY = 64
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
        self.drafts = False  # A draft model makes the guesses, or without rows for them reads the texts.

    def let_guess(self, guessed: int, *, drafts: bool = False) -> None:
        """Give each sequence so many rows for guesses."""
        self.guessed = guessed
        self.drafts = drafts
        self.rows = len(self.members) * (1 + guessed)


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
        self._fewest_spans: list[Span] = []
        self._padding: set[int] = set()  # Sequences that either plan pads.
        self._age = 0  # Decodes since the plans were made.
        self._steps = 0

    def pack(self, decoding: list[Sequence], table: SequenceTable) -> list[DecodeBatch]:
        """Return the batches for one row of every decoder; reproducible requests have a batch each."""
        for sequence in decoding:
            if sequence.grid is not None:
                alone = [DecodeBatch([each], []) for each in decoding if each.grid is not None]
                return alone + self.pack([each for each in decoding if each.grid is None], table)
        if not self._pads or len(decoding) <= 1:
            # llama.cpp does not split batches by number for models that cannot drop a tail.
            return [DecodeBatch(decoding, [])] if decoding else []
        for batch in (*self._fewest, *self._cheapest):
            if batch.guessed or batch.drafts:
                batch.let_guess(0)
        unchanged = decoding == self._decoding and all(map(table.can_pad, self._padding))
        if not unchanged:
            self._decoding = decoding
            # Few batches before few rows, but one batch more before long padding.
            self._fewest_spans = self._spans(table, lambda rows: 1 + rows / 8)
            self._fewest = _batches(decoding, self._fewest_spans)
        if not unchanged or self._age == _PLAN_AGAIN_EVERY:
            self._age = 0
            cheapest = self._spans(table, self._costs.decode.estimate)
            self._cheapest = self._fewest if cheapest == self._fewest_spans else _batches(decoding, cheapest)
            self._padding = {number for batch in (*self._fewest, *self._cheapest) for number in batch.padding}
        self._age += 1
        self._steps += 1
        if self._cheapest is self._fewest or self._steps % _TRY_AGAIN_EVERY == 0:
            return self._fewest
        known = all(self._costs.decode.seen(len(batch.members)) >= _TRIES for batch in self._fewest)
        saves = known and self.seconds(self._cheapest) < WORTH_IT * self.seconds(self._fewest)
        return self._cheapest if saves else self._fewest

    def seconds(self, batches: list[DecodeBatch]) -> float:
        """Return the expected time of these decodes."""
        return sum(self._costs.decode.estimate(batch.rows) for batch in batches)

    def _spans(self, table: SequenceTable, cost: Callable[[int], float]) -> list[Span]:
        numbers = [sequence.number for sequence in self._decoding]
        return plan_spans(numbers, can_pad=table.can_pad, cost=cost, most=self._batch_tokens)


def _batches(decoding: list[Sequence], spans: list[Span]) -> list[DecodeBatch]:
    """Return the batches of these spans: sequences that do not decode are padded."""
    decoders = {sequence.number: sequence for sequence in decoding}
    batches = []
    for low, high in spans:
        numbers = range(low, high + 1)
        sequences = [decoders[number] for number in numbers if number in decoders]
        batches.append(DecodeBatch(sequences, [number for number in numbers if number not in decoders]))
    return batches
