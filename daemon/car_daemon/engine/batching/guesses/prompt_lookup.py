"""Prompt lookup: guess that the tokens after an earlier occurrence of the last few tokens follow again."""

from array import array
from collections.abc import Iterable
from itertools import takewhile
from math import inf

# Lengths of the occurrences that are searched: the last of the first one, else of the second.
_CONTEXTS = (3, 2)
# Tokens before the end that are searched: bounds the time of a search to some tens of microseconds.
_WINDOW = 16_384
# Occurrences are told apart by their lengths up to these.
_LENGTHS = (2, 4, 8, inf)
_LONGEST = 9
# Assumed probability of a guessed token before any was tried, by the length of the occurrence.
_PRIOR = (0.3, 0.5, 0.7, 0.9)
# What was assumed, or learned from other requests, counts as much as this many tokens of the request itself.
_TRUST = 6
# From this many tried tokens on the older ones fade.
_MEMORY = 256
# After this many tokens without a guess one is tried again, and after twice as many whenever that was wrong.
_REST = 128
_LONGEST_REST = 1024
_BYTES = array("i").itemsize


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


class PromptLookup:
    """The tokens of one request so far, and how often guesses from them were right."""

    def __init__(self, tokens: Iterable[int], odds: Odds | None = None) -> None:
        self._tokens = array("i", tokens)
        self._odds = Odds(odds)
        self._length = 0  # of the occurrence that the last guess came from
        self._rested = 0  # tokens since the last guess
        self._rest = _REST

    def add(self, token: int) -> None:
        """Append the next token of the prompt or the answer."""
        self._tokens.append(token)
        self._rested += 1

    def find(self, most: int) -> tuple[list[int], float]:
        """Return up to `most` tokens to try, and the probability of each; no tokens where nothing occurred before.

        After a rest the probability is that before any guess was tried, so that a text that changed is noticed.
        """
        place = next((place for length in _CONTEXTS if (place := self._last_place(length)) is not None), None)
        if place is None:
            return [], 0.0
        self._length = self._length_at(place)
        # A repetition that reached the end so far is guessed to continue.
        tokens, period = self._tokens, len(self._tokens) - place
        guess = (tokens[place + step % period] for step in range(most))
        probability = self._odds.probability(self._length)
        if self._rested >= self._rest:
            probability = max(probability, _PRIOR[_kind(self._length)])
        # Negative numbers are placeholders of images, and cannot be tried.
        return list(takewhile(lambda token: token >= 0, guess)), probability

    def learn(self, guessed: int, right: int) -> None:
        """Learn from the number of right tokens in the guess that was found last."""
        if right:
            self._rest = _REST
        elif self._rested >= self._rest:
            self._rest = min(2 * self._rest, _LONGEST_REST)
        self._rested = 0
        self._odds.learn(self._length, right + (right < guessed), right)

    def _last_place(self, length: int) -> int | None:
        """Return the place after the last earlier occurrence of the last `length` tokens."""
        tokens = self._tokens
        if len(tokens) <= length:
            return None
        window = memoryview(tokens)[-_WINDOW:].tobytes()
        wanted, end = window[-length * _BYTES :], len(window) - 1
        while (found := window.rfind(wanted, 0, end)) >= 0:
            if found % _BYTES == 0:
                return max(0, len(tokens) - _WINDOW) + found // _BYTES + length
            end = found + len(wanted) - 1
        return None

    def _length_at(self, place: int) -> int:
        """Return the number of equal tokens before a place and the end, up to the longest that is told apart."""
        tokens, most = self._tokens, min(_LONGEST, place)
        return next((length for length in range(most) if tokens[place - length - 1] != tokens[-length - 1]), most)


def _kind(length: int) -> int:
    return next(kind for kind, longest in enumerate(_LENGTHS) if length <= longest)
