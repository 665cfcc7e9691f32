"""Decode batches: neighbours together or one by one, and how many tokens each sequence tries."""

from operator import attrgetter, itemgetter

from car_engine.batching.costs import KNOTS, TILE, StepCosts
from car_engine.batching.guesses import PromptLookup
from car_engine.batching.sequences import Grid, Sequence, SequenceTable, mean_cells

# Observed costs vary by some percent: a plan has to save more than that.
_WORTH_IT = 0.95
# Rows together that look too dear, of several sequences or of guesses, are computed once in so many decodes, so that
# their cost stays known: below 1% of decodes, so that it shows in no 99th percentile.
_TRY_EVERY = 128
# Eight rows cost about as much as one decode more, on the most uneven curve that was measured.
MOST_PADDING = 7

_by_number = itemgetter(0)
_grid = attrgetter("grid")


class DecodeBatch:
    """One decode: a row of each of these sequences, and padding rows in the sequences between them."""

    def __init__(self, sequences: list[Sequence], padding: list[int]) -> None:
        self.sequences = sequences
        self.padding = padding
        members: list[tuple[int, Sequence | None]] = [(sequence.number, sequence) for sequence in sequences]
        members += [(number, None) for number in padding]
        # Sequences by ascending number, None for padding: llama.cpp splits batches in another order.
        self.members = sorted(members, key=_by_number)
        self.rows = len(members)  # With the rows for guesses.
        self.guessed = 0  # Rows for guesses of each sequence, beside its first.

    def let_guess(self, guessed: int) -> None:
        """Give each sequence so many rows for guesses."""
        self.guessed = guessed
        self.rows = len(self.members) * (1 + guessed)


# Batches, and the seconds that they are expected to take.
Decodes = tuple[list[DecodeBatch], float]


class _Run:
    """Neighbours that decode, and both ways to do it; they stay while the same sequences decode."""

    def __init__(self, sequences: list[Sequence], padding: list[int]) -> None:
        self._sequences = sequences
        self._together = [DecodeBatch(sequences, padding)]
        self._rows = len(sequences) + len(padding)
        self._apart = [DecodeBatch([each], []) for each in sequences] if len(sequences) > 1 else []
        self._decodes = 0  # How many looked cheaper apart since these sequences decode.

    def batches(self, costs: StepCosts) -> Decodes:
        """Return the cheaper way, and together now and then although that looks dearer."""
        depth = mean_cells(self._sequences)
        together = costs.decode(self._rows, depth)
        if self._apart and (apart := len(self._apart) * costs.decode(1, depth)) < _WORTH_IT * together:
            self._decodes += 1
            if self._decodes % _TRY_EVERY:
                return self._apart, apart
        return self._together, together


class DecodePacker:
    """Pack rows into batches, and keep the runs while the same sequences decode.

    `pads` is False when the model's memory cannot drop the cell of a padding row.
    """

    def __init__(self, costs: StepCosts, batch_tokens: int, *, pads: bool) -> None:
        self._costs = costs
        self._batch_tokens = batch_tokens
        self._pads = pads
        self._decoding: list[Sequence] = []  # The sequences of the runs.
        self._grids: list[Grid | None] = []  # Theirs: a sequence may have gone to another request.
        self._runs: list[_Run] = []
        self._padding: list[int] = []  # The sequences between them.

    def pack(self, decoding: list[Sequence], table: SequenceTable) -> Decodes:
        """Return the batches for one row of every decoder; reproducible requests have a batch each."""
        grids = list(map(_grid, decoding))
        if decoding != self._decoding or grids != self._grids or not all(map(table.can_pad, self._padding)):
            self._decoding, self._grids, self._padding, self._runs = decoding, grids, [], []
            self._cut([each for each in decoding if each.grid is None], table)
            self._runs += [_Run([each], []) for each in decoding if each.grid is not None]
        batches, seconds = list[DecodeBatch](), 0.0
        for run in self._runs:
            more, expected = run.batches(self._costs)
            batches += more
            seconds += expected
        for batch in batches:
            if batch.guessed:
                batch.let_guess(0)
        return batches, seconds

    def _cut(self, decoding: list[Sequence], table: SequenceTable) -> None:
        """Cut decoders into runs: llama.cpp computes consecutive sequences together, and splits others.

        It does not split when the model's memory cannot drop a tail: all are one run then.
        """
        run, padding = decoding[:1], list[int]()
        for sequence in decoding[1:]:
            gap = range(run[-1].number + 1, sequence.number) if self._pads else range(0)
            fits = not self._pads or sequence.number - run[0].number < self._batch_tokens
            if not fits or len(gap) > MOST_PADDING or not all(map(table.can_pad, gap)):
                self._close(run, padding)
                run, padding, gap = [], [], range(0)
            run.append(sequence)
            padding += gap
        if run:
            self._close(run, padding)

    def _close(self, run: list[Sequence], padding: list[int]) -> None:
        self._runs.append(_Run(run, padding))
        self._padding += padding


# Tokens to try in one decode, of each sequence alike: llama.cpp splits a decode whose sequences have unequal numbers.
# With the first row they are a size whose seconds are known, below the tiles, whose costs no single decode has shown.
_GUESSED = tuple(size - 1 for size in KNOTS if 1 < size < TILE)
# Costs vary by some percent from step to step: a guess has to promise this many times the tokens a second.
_GUESSES_WORTH = 1.1
# A promise: when a decode exceeds the target of a step without guesses, it takes at most twice as long with some.
_PATIENCE = 2.0


class Guesser:
    """Chooses the guesses of decodes, from earlier text: at most `guesses` of a sequence."""

    def __init__(self, costs: StepCosts, batch_tokens: int, step_target: float, guesses: int) -> None:
        self._costs = costs
        self._step_target = step_target
        self._most_rows = min(batch_tokens, TILE)
        self._guesses = guesses
        self._plain = 0  # Decodes since the last guess that looked too dear and was tried.

    def plan(self, batch: DecodeBatch, context_tokens: int, step: float) -> float:
        """Let the sequences of a decode try several tokens at once, unless llama.cpp would split it.

        A sequence with fewer guesses than others has rows that bring nothing. `step` is what all decodes of the step
        take without guesses, in seconds: with guesses they take at most the target of a step, or twice as long. Return
        how much longer the decode takes, in seconds.
        """
        lookups = [sequence.lookup for sequence in batch.sequences if sequence.lookup is not None]
        if batch.padding or len(lookups) < len(batch.sequences):
            return 0.0
        depth, count = mean_cells(batch.sequences), len(lookups)
        alone = self._costs.decode(count, depth)
        most = alone * max(self._step_target / step, _PATIENCE)
        left = context_tokens - max(sequence.cells for sequence in batch.sequences)
        room = min(min(self._most_rows // count, left) - 1, self._guesses)
        seconds = {each: self._costs.decode(count * (1 + each), depth) for each in _GUESSED if each <= room}
        rate = _GUESSES_WORTH * count / alone
        best = _best(lookups, {each: cost for each, cost in seconds.items() if cost <= most}, rate)
        if not best:
            self._plain += 1
            if not seconds or self._plain < _TRY_EVERY or not any(lookup.follows() for lookup in lookups):
                return 0.0
            self._plain, best = 0, 1
        batch.let_guess(best)
        for sequence, lookup in zip(batch.sequences, lookups, strict=True):
            sequence.guess = lookup.guess(best)
        return seconds[best] - alone


def _best(lookups: list[PromptLookup], seconds: dict[int, float], rate: float) -> int:
    """Return how many guesses of each sequence bring the most tokens a second; 0 if none bring more than `rate`."""
    count = len(lookups)
    affordable = [each for each, cost in seconds.items() if count * (1 + each) > rate * cost]
    # No text is searched when not even right guesses pay.
    if not affordable:
        return 0
    expected = [lookup.expected(affordable[-1]) for lookup in lookups]
    best = max(affordable, key=lambda each: _tokens(expected, each) / seconds[each])
    return best if _tokens(expected, best) > rate * seconds[best] else 0


def _tokens(expected: list[list[float]], guessed: int) -> float:
    """Return the tokens that a decode with so many guesses of each sequence brings."""
    return sum(tokens[min(guessed, len(tokens) - 1)] for tokens in expected)
