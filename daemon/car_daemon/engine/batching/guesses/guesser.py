"""How many tokens each sequence of a decode tries at once: what the cost curves say they bring."""

from collections.abc import Callable
from typing import NamedTuple

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.drafter import Drafter
from car_daemon.engine.batching.guesses.odds import DRAFTED
from car_daemon.engine.batching.guesses.prompt_lookup import PromptLookup
from car_daemon.engine.batching.packing import DecodeBatch
from car_daemon.engine.batching.sequence import Sequence

# Tokens to try in one decode, of each sequence alike: llama.cpp splits a decode whose sequences have unequal numbers.
_LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 31)
_MOST_ROWS = 64
# A guess has to promise this many times the tokens per second of a decode without one.
_WORTH = 1.1
# A shorter guess that promises this part of what the best one does is preferred.
_NEARLY = 0.95
# Where the decodes of a step miss its target anyway, they may take so many times as long with guesses.
_PATIENCE = 2.0
# Where guesses that are right this often would not pay, none are looked for.
_AT_BEST = 0.95
# Costs drift, so whether they would pay is found out again after this many decodes, one of which guesses nothing.
_LOOK_AGAIN_EVERY = 64

# The probability of guessed tokens of each sequence, and how many there are.
_Odds = list[tuple[float, int]]


class _Best(NamedTuple):
    """A number of tokens to try, and the tokens per second that it promises."""

    length: int
    rate: float


class Guesser:
    """Chooses the guesses of decodes: from earlier text, or from a draft model where there is one."""

    def __init__(self, costs: StepCosts, batch_tokens: int, step_target: float, drafter: Drafter | None = None) -> None:
        self._costs = costs
        self._step_target = step_target
        self._drafter = drafter
        self._most_rows = min(batch_tokens, _MOST_ROWS)
        self._may_pay: dict[int, bool] = {}  # by number of sequences
        self._age = 0  # decodes since this was found out

    def plan(self, batch: DecodeBatch, context_tokens: int, batches: list[DecodeBatch]) -> None:
        """Let the sequences of a decode try several tokens at once, unless it is padded, or split by llama.cpp.

        A sequence with fewer guesses than others has rows that bring nothing. `batches` are those of the step, which
        are planned in their order.
        """
        self._age += 1
        if self._age >= _LOOK_AGAIN_EVERY:
            self._age = 0
            self._may_pay.clear()
            return
        sequences, members = batch.sequences, batch.members
        count = len(sequences)
        if self._may_pay.get(count) is False:
            return
        dense = members[-1][0] - members[0][0] == count - 1
        lookups = [sequence.lookup for sequence in sequences if sequence.lookup is not None]
        if not dense or len(lookups) < count:
            return
        lengths = self._lengths(sequences, context_tokens)
        if lengths and count not in self._may_pay:
            at_best = [(_AT_BEST, _LENGTHS[-1])] * count
            self._may_pay[count] = bool(self._looked_up(lengths, at_best, self._most(batch, [batch])).length)
        if lengths and self._may_pay[count]:
            self._choose(batch, lookups, lengths, self._most(batch, batches))

    def _choose(self, batch: DecodeBatch, lookups: list[PromptLookup], lengths: list[int], most: float) -> None:
        found = [lookup.find(lengths[-1]) for lookup in lookups]
        looked_up = self._looked_up(lengths, [(probability, len(tokens)) for tokens, probability in found], most)
        drafted = self._drafted(batch.sequences, lengths, most)
        if self._drafter is not None and drafted.rate > looked_up.rate:
            batch.let_guess(drafted.length if self._drafter.is_near(batch.sequences) else 0, drafts=True)
            return
        batch.let_guess(looked_up.length)
        for sequence, (tokens, _) in zip(batch.sequences, found, strict=True):
            sequence.guess = tokens[: looked_up.length]

    def _most(self, batch: DecodeBatch, batches: list[DecodeBatch]) -> float:
        """Return the most seconds for a decode: its share of the time that the decodes of a step leave for guesses."""
        alone = sum(self._costs.decode.estimate(len(each.members)) for each in batches)
        left = max(self._step_target, _PATIENCE * alone) - sum(map(self._seconds, batches))
        share = max(0.0, left) / (len(batches) - batches.index(batch))
        return self._seconds(batch) + share

    def _seconds(self, batch: DecodeBatch) -> float:
        """Return the expected seconds of a decode, and of the draft model before it."""
        seconds = self._costs.decode.estimate(batch.rows)
        if batch.drafts and self._drafter is not None:
            seconds += self._drafter.cost(batch.sequences)(batch.guessed)
        return seconds

    def _lengths(self, sequences: list[Sequence], context_tokens: int) -> list[int]:
        """Return the numbers of tokens to try for which there is room."""
        room = context_tokens - 1 - max(sequence.cells for sequence in sequences)
        return [each for each in _LENGTHS if each <= room and len(sequences) * (1 + each) <= self._most_rows]

    def _looked_up(self, lengths: list[int], odds: _Odds, most: float) -> _Best:
        """Return what guesses of these odds promise, which cost nothing but their rows."""
        count = len(odds)
        return _best(lengths, lambda length: self._costs.decode.estimate(count * (1 + length)), odds, most)

    def _drafted(self, sequences: list[Sequence], lengths: list[int], most: float) -> _Best:
        """Return what the draft model promises, where it may guess for all sequences."""
        drafter, count = self._drafter, len(sequences)
        odds = [
            (sequence.draft.probability(DRAFTED, sequence.cells), lengths[-1])
            for sequence in sequences
            if sequence.draft is not None
        ]
        if drafter is None or len(odds) < count:
            return _Best(0, 0.0)
        within = [each for each in lengths if each in self._lengths(sequences, drafter.context_tokens)]
        cost = drafter.cost(sequences)
        verify = self._costs.decode.estimate
        return _best(within, lambda length: verify(count * (1 + length)) + cost(length), odds, most)


def _best(lengths: list[int], seconds: Callable[[int], float], odds: _Odds, most: float) -> _Best:
    """Return the length with nearly the most tokens per second, within `most` seconds.

    Of lengths that promise nearly as much the least, because a client waits for all tokens of a decode; 0 where none
    promises enough more than without guesses.
    """
    alone = seconds(0)
    least = _WORTH * len(odds) / alone
    longest = max((guesses for _, guesses in odds), default=0)
    found: list[_Best] = []
    for length in lengths:
        if (takes := seconds(length)) <= most:
            tokens = sum(_expected(probability, min(guesses, length)) for probability, guesses in odds)
            found.append(_Best(length, tokens / takes))
        if length >= longest:
            break
    fastest = max((each.rate for each in found), default=0.0)
    enough = max(least, _NEARLY * fastest)
    return next((each for each in found if each.rate >= enough), _Best(0, least))


def _expected(probability: float, guesses: int) -> float:
    """Return the expected number of tokens of a row and the guesses after it, of which the first wrong one ends it."""
    if probability >= 1.0:
        return 1.0 + guesses
    return (1 - probability ** (guesses + 1)) / (1 - probability)
