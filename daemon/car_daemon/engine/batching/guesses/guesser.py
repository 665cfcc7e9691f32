"""The guesser chooses how many tokens the sequences of a decode try: the number with the most tokens a second."""

from collections import Counter
from itertools import cycle
from typing import NamedTuple

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.budget import MOST
from car_daemon.engine.batching.guesses.prompt_lookup import PromptLookup
from car_daemon.engine.batching.packing import DecodeBatch

# Tokens to try in one decode, of each sequence alike: llama.cpp splits a decode whose sequences have unequal numbers.
_LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 31)
_MOST_ROWS = 64
# A guess has to promise this many times the tokens per second of a decode without one.
_WORTH = 1.1
# A shorter guess that promises this part of what the best one does is preferred.
_NEARLY = 0.95
# Where the decodes of a step miss its target anyway, they may take so many times as long with guesses.
_PATIENCE = 2.0
# After so many decodes with guesses one has none, so that its cost stays known.
_MOST_IN_A_ROW = 64
# Where not even right guesses of several sequences pay, so many decodes of as many have none: costs change slowly.
_REST = 16
# After so many decodes without a guess a nearly sure one is tried though it does not pay: its cost may have fallen.
_LOOK_AFTER = 512
_LOOKS = (1, 3)
_NEARLY_SURE = 0.95

# The tokens that a sequence gets from a decode, by the number of its guesses.
_Expected = list[float]


class _Try(NamedTuple):
    """A number of tokens to try, and the seconds of the decode with them."""

    length: int
    seconds: float


class _Best(NamedTuple):
    """A number of tokens to try, and the tokens per second that it promises."""

    length: int
    rate: float


class Guesser:
    """Chooses the guesses of decodes, from earlier text."""

    def __init__(self, costs: StepCosts, batch_tokens: int, step_target: float) -> None:
        self._costs = costs
        self._step_target = step_target
        self._most_rows = min(batch_tokens, _MOST_ROWS)
        self._in_a_row = 0  # decodes with guesses
        self._without = 0  # decodes without one since the last one that had some, or that was a look
        self._looks = cycle(_LOOKS)
        self._rests: Counter[int] = Counter()  # decodes to come without guesses, by their number of sequences

    def plan(self, batch: DecodeBatch, context_tokens: int, batches: list[DecodeBatch]) -> None:
        """Let the sequences of a decode try several tokens at once, unless it is padded, or split by llama.cpp.

        A sequence with fewer guesses than others has rows that bring nothing. `batches` are those of the step, which
        are planned in their order.
        """
        lookups = [sequence.lookup for sequence in batch.sequences if sequence.lookup is not None]
        dense = batch.members[-1][0] - batch.members[0][0] == len(batch.sequences) - 1
        if not dense or len(lookups) < len(batch.sequences):
            return
        # A search for each of many sequences takes longer than a look at what guesses could bring at best.
        if len(lookups) == 1 and not lookups[0].follows():
            return
        if self._rests[len(lookups)]:
            self._rests[len(lookups)] -= 1
        elif self._in_a_row < _MOST_IN_A_ROW:
            self._choose(batch, lookups, context_tokens, self._most(batch, batches))
        self._in_a_row = self._in_a_row + 1 if batch.guessed else 0
        self._without = 0 if batch.guessed else self._without + 1

    def _choose(self, batch: DecodeBatch, lookups: list[PromptLookup], context_tokens: int, most: float) -> None:
        tries = self._tries(batch, context_tokens, min(most, self._within_budget(lookups)))
        looked_up = _Best(0, self._least(batch))
        if any(len(lookups) * (1 + each.length) >= looked_up.rate * each.seconds for each in tries):
            longest = tries[-1].length
            looked_up = _best(tries, [lookup.expected(longest) for lookup in lookups], looked_up)
        elif tries and len(lookups) > 1:
            self._rests[len(lookups)] = _REST
        length = looked_up.length or self._look(batch, lookups, context_tokens, most)
        if length:
            batch.let_guess(length)
            for sequence, lookup in zip(batch.sequences, lookups, strict=True):
                sequence.guess = lookup.guess(length)

    def _look(self, batch: DecodeBatch, lookups: list[PromptLookup], context_tokens: int, most: float) -> int:
        """Return now and then the length of a guess that is nearly sure, though it does not pay; otherwise 0."""
        if self._without < _LOOK_AFTER or len(lookups) > 1:
            return 0
        length, dearest = next(self._looks), (1 + MOST) * self._costs.decode.estimate(1)
        tries = self._tries(batch, context_tokens, min(most, dearest))
        expected = lookups[0].expected(length)
        sure = expected[-1] >= _NEARLY_SURE * (1 + length)
        return length if sure and any(each.length == length for each in tries) else 0

    def _least(self, batch: DecodeBatch) -> float:
        """Return the tokens per second that a guess has to promise."""
        return _WORTH * len(batch.sequences) / self._costs.decode.estimate(len(batch.sequences))

    def _within_budget(self, lookups: list[PromptLookup]) -> float:
        """Return the most seconds for a decode that brings no more than one without guesses, if all are wrong."""
        loss = sum(lookup.budget.left for lookup in lookups) / len(lookups)
        return (1 + loss) * self._costs.decode.estimate(len(lookups))

    def _most(self, batch: DecodeBatch, batches: list[DecodeBatch]) -> float:
        """Return the most seconds for a decode: its share of the time that the decodes of a step leave for guesses."""
        alone = sum(self._costs.decode.estimate(len(each.members)) for each in batches)
        left = max(self._step_target, _PATIENCE * alone) - sum(map(self._seconds, batches))
        share = max(0.0, left) / (len(batches) - batches.index(batch))
        return self._seconds(batch) + share

    def _seconds(self, batch: DecodeBatch) -> float:
        """Return the expected seconds of a decode."""
        return self._costs.decode.estimate(batch.rows)

    def _tries(self, batch: DecodeBatch, context_tokens: int, most: float) -> list[_Try]:
        """Return the numbers of tokens for which there is room and time."""
        count = len(batch.sequences)
        room = context_tokens - 1 - max(sequence.cells for sequence in batch.sequences)
        lengths = [each for each in _LENGTHS if each <= room and count * (1 + each) <= self._most_rows]
        tries = (_Try(each, self._costs.decode.estimate(count * (1 + each))) for each in lengths)
        return [each for each in tries if each.seconds <= most]


def _best(tries: list[_Try], expected: list[_Expected], none: _Best) -> _Best:
    """Return the length with nearly the most tokens per second.

    Of lengths that promise nearly as much the least, because a client waits for all tokens of a decode; `none` where
    no length promises more than that.
    """
    longest = max(map(len, expected)) - 1
    found = [
        _Best(length, sum(tokens[min(length, len(tokens) - 1)] for tokens in expected) / seconds)
        for length, seconds in tries
        if length <= longest
    ]
    fastest = max((each.rate for each in found), default=0.0)
    enough = max(none.rate, _NEARLY * fastest)
    return next((each for each in found if each.rate >= enough), none)
