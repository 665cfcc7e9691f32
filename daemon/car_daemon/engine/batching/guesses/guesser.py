"""The guesser chooses how many tokens the sequences of a decode try: the number with the most tokens a second."""

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.packing import DecodeBatch
from car_daemon.engine.batching.sequence import mean_cells

# Tokens to try in one decode, of each sequence alike: llama.cpp splits a decode whose sequences have unequal numbers.
_LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 31)
# From here on llama.cpp computes attention in tiles, whose costs no single decode has shown.
_MOST_ROWS = 64
# Costs vary by some percent from step to step: a guess has to promise this many times the tokens a second.
_WORTH = 1.1
# A promise: when a decode exceeds the target of a step without guesses, it takes at most twice as long with some.
_PATIENCE = 2.0


class Guesser:
    """Chooses the guesses of decodes, from earlier text."""

    def __init__(self, costs: StepCosts, batch_tokens: int, step_target: float) -> None:
        self._costs = costs
        self._step_target = step_target
        self._most_rows = min(batch_tokens, _MOST_ROWS)

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
        room = min(self._most_rows // count, context_tokens - max(sequence.cells for sequence in batch.sequences)) - 1
        seconds = {each: self._costs.decode(count * (1 + each), depth) for each in _LENGTHS if each <= room}
        rate = _WORTH * count / alone
        affordable = [each for each, cost in seconds.items() if cost <= most and count * (1 + each) > rate * cost]
        # No text is searched when not even right guesses pay.
        if not affordable:
            return 0.0
        expected = [lookup.expected(affordable[-1]) for lookup in lookups]
        best = max(affordable, key=lambda each: _tokens(expected, each) / seconds[each])
        if _tokens(expected, best) <= rate * seconds[best]:
            return 0.0
        batch.let_guess(best)
        for sequence, lookup in zip(batch.sequences, lookups, strict=True):
            sequence.guess = lookup.guess(best)
        return seconds[best] - alone


def _tokens(expected: list[list[float]], guessed: int) -> float:
    """Return the tokens that a decode with so many guesses of each sequence brings."""
    return sum(tokens[min(guessed, len(tokens) - 1)] for tokens in expected)
