"""The probability that a guessed token is right, learned from earlier tokens."""

from bisect import bisect_left

# The lengths of occurrences are told apart up to these; the last kind has all longer ones.
_LENGTHS = (2, 3, 5, 8, 16)
# Assumed probability of a guessed token before any was seen, by the length of the occurrence.
_PRIOR = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
# What was assumed, or for a draft model learned from other requests, counts as much as this many tokens of the request.
_TRUST = 4
# From this many tokens on the older ones fade.
_MEMORY = 256
# A draft model's guesses, before any was tried: with a lower one a draft that pays only if it is nearly always right
# would never be tried, and a wrong one is given up after some guesses.
_DRAFTED = 0.9
# After so many tokens without a guess of the draft model half of what was learned counts: the text may be another.
_FORGOTTEN = 512


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


class DraftOdds:
    """The probability that a token of the draft model is right, learned from tokens that were tried."""

    def __init__(self, prior: "DraftOdds | None", tokens: int = 0) -> None:
        self._prior = prior  # of all requests; None for these themselves
        self._share = _Share()
        self._tried_at = tokens  # of the text, at the last guess

    def __repr__(self) -> str:
        return f"<DraftOdds {self._learned():.2f}, last at {self._tried_at}>"

    def expected(self, tokens: int, most: int) -> list[float]:
        """Return the tokens that a decode brings with 0 to `most` guesses, in a text of so many tokens."""
        probability = self._learned()
        if probability < _DRAFTED:
            known = 0.5 ** ((tokens - self._tried_at) / _FORGOTTEN)
            probability = _DRAFTED - known * (_DRAFTED - probability)
        brings = [1.0]
        for guessed in range(1, most + 1):
            brings.append(brings[-1] + probability**guessed)
        return brings

    def learn(self, guessed: int, right: int, tokens: int) -> None:
        """Learn from the number of right tokens in a guess, after which the text has so many tokens."""
        self._tried_at = tokens
        self._share.learn(right + (right < guessed), right)
        if self._prior is not None:
            self._prior.learn(guessed, right, tokens)

    def _learned(self) -> float:
        return self._share.value(_DRAFTED if self._prior is None else self._prior._learned())
