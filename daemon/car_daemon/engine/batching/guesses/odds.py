"""How probable it is that guessed tokens are right, learned from guesses that were tried."""

from math import inf

# Occurrences are told apart by their lengths up to these.
_LENGTHS = (2, 4, 8, inf)
LONGEST = 9
# A draft model's guesses count as those of an occurrence of this length, before any was tried.
DRAFTED = 8
# Assumed probability of a guessed token before any was tried, by the length of the occurrence.
_PRIOR = (0.3, 0.5, 0.7, 0.9)
# What was assumed, or learned from other requests, counts as much as this many tokens of the request itself.
_TRUST = 6
# From this many tried tokens on the older ones fade.
_MEMORY = 256
# After this many tokens without a guess one is tried again, and after twice as many whenever that was wrong.
_REST = 128
_LONGEST_REST = 1024


class Odds:
    """The probability that a guessed token is right, by the length of the occurrence that it was guessed from."""

    def __init__(self, prior: "Odds | None" = None) -> None:
        self._prior = prior  # of all requests; None for these themselves
        self._tried = [0.0] * len(_PRIOR)
        self._right = [0.0] * len(_PRIOR)

    def __repr__(self) -> str:
        return f"<Odds {[round(self.probability(length), 2) for length in (2, 4, 8, 9)]}>"

    def probability(self, length: int) -> float:
        """Return the probability for an occurrence of a length in tokens."""
        kind = _kind(length)
        assumed = _PRIOR[kind] if self._prior is None else self._prior.probability(length)
        return (self._right[kind] + _TRUST * assumed) / (self._tried[kind] + _TRUST)

    def learn(self, length: int, tried: int, right: int) -> None:
        """Count tokens that were tried, of which the first `right` were right."""
        kind = _kind(length)
        self._tried[kind] += tried
        self._right[kind] += right
        if self._tried[kind] > _MEMORY:
            self._tried[kind] /= 2
            self._right[kind] /= 2
        if self._prior is not None:
            self._prior.learn(length, tried, right)


class Trials:
    """The guesses of one kind in one text: their odds, and when one is tried again that does not pay."""

    def __init__(self, odds: Odds | None, tokens: int) -> None:
        self._odds = Odds(odds)
        self._tried_at = tokens  # of the text, at the last guess
        self._rest = _REST

    def __repr__(self) -> str:
        return f"<Trials {self._odds!r}, last at {self._tried_at}>"

    def probability(self, length: int, tokens: int) -> float:
        """Return the probability of a guessed token, in a text of so many tokens.

        After a rest it is that before any guess was tried, so that a text that changed is noticed.
        """
        probability = self._odds.probability(length)
        return max(probability, _PRIOR[_kind(length)]) if tokens - self._tried_at >= self._rest else probability

    def learn(self, length: int, guessed: int, right: int, tokens: int) -> None:
        """Learn from the number of right tokens in a guess, after which the text has so many tokens."""
        if right:
            self._rest = _REST
        elif tokens - self._tried_at >= self._rest:
            self._rest = min(2 * self._rest, _LONGEST_REST)
        self._tried_at = tokens
        self._odds.learn(length, right + (right < guessed), right)


def _kind(length: int) -> int:
    return next(kind for kind, longest in enumerate(_LENGTHS) if length <= longest)
