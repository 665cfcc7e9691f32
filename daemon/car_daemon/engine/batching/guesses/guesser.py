"""How many tokens each sequence of a decode tries at once: what the cost curve says they bring."""

from collections.abc import Callable

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.packing import DecodeBatch

# Tokens to try in one decode, of each sequence alike: llama.cpp splits a decode whose sequences have unequal numbers.
_LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 31)
_MOST_ROWS = 64
# A guess has to promise this many times the tokens per second of a decode without one.
_WORTH = 1.1
# Where guesses that are right this often would not pay, none are looked for.
_AT_BEST = 0.95
# Costs drift, so whether they would pay is found out again after this many decodes.
_LOOK_AGAIN_EVERY = 64


class Guesser:
    """Chooses the guesses of decodes."""

    def __init__(self, costs: StepCosts, batch_tokens: int) -> None:
        self._costs = costs
        self._most_rows = min(batch_tokens, _MOST_ROWS)
        self._may_pay: dict[int, bool] = {}  # by number of sequences
        self._age = 0  # decodes since this was found out

    def plan(self, batch: DecodeBatch, context_tokens: int) -> None:
        """Let the sequences of a decode try several tokens at once, unless it is padded, or split by llama.cpp.

        A sequence with fewer guesses than others has rows that bring nothing.
        """
        self._age += 1
        if self._age >= _LOOK_AGAIN_EVERY:
            self._age = 0
            self._may_pay.clear()
        sequences, members = batch.sequences, batch.members
        count = len(sequences)
        if self._may_pay.get(count) is False:
            return
        dense = members[-1][0] - members[0][0] == count - 1
        lookups = [sequence.lookup for sequence in sequences if sequence.lookup is not None]
        if not dense or len(lookups) < count:
            return
        cost = self._costs.decode.estimate
        room = context_tokens - 1 - max(sequence.cells for sequence in sequences)
        lengths = [each for each in _LENGTHS if each <= room and count * (1 + each) <= self._most_rows]
        self._may_pay[count] = not lengths or bool(_best(lengths, cost, [(_AT_BEST, _LENGTHS[-1])] * count))
        if lengths and self._may_pay[count]:
            found = [lookup.find(lengths[-1]) for lookup in lookups]
            length = _best(lengths, cost, [(probability, len(tokens)) for tokens, probability in found])
            batch.let_guess(length)
            for sequence, (tokens, _) in zip(sequences, found, strict=True):
                sequence.guess = tokens[:length]


def _best(lengths: list[int], cost: Callable[[int], float], odds: list[tuple[float, int]]) -> int:
    """Return the length with the most tokens per second, 0 for none, by the probability and number of guesses each."""
    count = len(odds)
    best, most = 0, _WORTH * count / cost(count)
    longest = max((guesses for _, guesses in odds), default=0)
    for length in lengths:
        tokens = sum(_expected(probability, min(guesses, length)) for probability, guesses in odds)
        rate = tokens / cost(count * (1 + length))
        if rate >= most:
            best, most = length, rate
        if length >= longest:
            break
    return best


def _expected(probability: float, guesses: int) -> float:
    """Return the expected number of tokens of a row and the guesses after it, of which the first wrong one ends it."""
    if probability >= 1.0:
        return 1.0 + guesses
    return (1 - probability ** (guesses + 1)) / (1 - probability)
