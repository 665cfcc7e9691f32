"""The probability that a guessed token is right, learned from earlier tokens."""

from bisect import bisect_left

# The lengths of occurrences are told apart up to these; the last kind has all longer ones.
_LENGTHS = (2, 3, 5, 8, 16)
# Assumed probability of a guessed token before any was seen, by the length of the occurrence.
_PRIOR = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
# What was assumed counts as much as this many tokens of the request.
_TRUST = 4
# From this many tokens on the older ones fade.
_MEMORY = 256


class _Share:
    """The share of right tokens, of the latest ones."""

    def __init__(self) -> None:
        self._seen = 0.0
        self._right = 0.0

    def learn(self, seen: int, right: int) -> None:
        self._seen += seen
        self._right += right
        if self._seen > _MEMORY:
            self._seen /= 2
            self._right /= 2

    def value(self, assumed: float) -> float:
        """Return the share, which is the assumed one as long as there are few tokens."""
        return (self._right + _TRUST * assumed) / (self._seen + _TRUST)


class Odds:
    """The probability that the token after an earlier occurrence follows again, by the length of the occurrence.

    It is learned from every token of the request's own answer, whether it was tried or not.
    """

    def __init__(self) -> None:
        self._shares = [_Share() for _ in _PRIOR]

    def __repr__(self) -> str:
        return f"<Odds {[round(each, 2) for each in self.probabilities()]}>"

    def probabilities(self) -> list[float]:
        """Return the probability for each kind of length."""
        return [share.value(each) for share, each in zip(self._shares, _PRIOR, strict=True)]

    def expected(self, length: int, most: int) -> list[float]:
        """Return the tokens that a decode brings with 0 to `most` guesses after an occurrence of a length.

        The first wrong guess ends the decode; with each right one the occurrence is longer.
        """
        probabilities = self.probabilities()
        tokens, reached = [1.0], 1.0
        for further in range(most):
            reached *= probabilities[bisect_left(_LENGTHS, length + further)]
            tokens.append(tokens[-1] + reached)
        return tokens

    def learn(self, length: int, *, right: bool) -> None:
        """Count the token after an occurrence of a length."""
        self._shares[bisect_left(_LENGTHS, length)].learn(1, right)
