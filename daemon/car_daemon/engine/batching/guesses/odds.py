"""The probability that a guessed token is right, learned from earlier tokens of the same text."""

from bisect import bisect_left

# Occurrences of up to 3, up to 8 and more tokens differ: two to six kinds change what copies gain by 5% at most.
_KINDS = (3, 8)
# Assumed by kind until tokens were seen. A heuristic: between the shares of copies and of free texts.
_ASSUMED = (0.4, 0.7, 0.9)
# The assumption counts as much as so many tokens; twice as many change what copies gain by 5% at most.
_TRUST = 4
# From so many tokens on the older tokens fade, because texts change.
_MEMORY = 256


class Odds:
    """The probability that the token after an earlier occurrence follows again, by the length of the occurrence.

    Every token of the request's own answer teaches it, whether it was tried or not.
    """

    def __init__(self) -> None:
        self._seen = [0.0 for _ in _ASSUMED]
        self._right = [0.0 for _ in _ASSUMED]

    def __repr__(self) -> str:
        return f"<Odds {[round(self._probability(kind), 2) for kind in range(len(_ASSUMED))]}>"

    def expected(self, length: int, most: int) -> list[float]:
        """Return the tokens that a decode brings with 0 to `most` guesses after an occurrence of a length.

        The first wrong guess ends the decode; each right guess makes the occurrence longer.
        """
        tokens, reached = [1.0], 1.0
        for further in range(most):
            reached *= self._probability(bisect_left(_KINDS, length + further))
            tokens.append(tokens[-1] + reached)
        return tokens

    def learn(self, length: int, *, right: bool) -> None:
        """Count the token after an occurrence of a length."""
        kind = bisect_left(_KINDS, length)
        self._seen[kind] += 1
        self._right[kind] += right
        if self._seen[kind] > _MEMORY:
            self._seen[kind] /= 2
            self._right[kind] /= 2

    def _probability(self, kind: int) -> float:
        return (self._right[kind] + _TRUST * _ASSUMED[kind]) / (self._seen[kind] + _TRUST)
