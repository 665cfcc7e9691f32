"""Prompt lookup: guess that the tokens after an earlier occurrence of the last few tokens follow again."""

from array import array
from collections.abc import Iterable
from itertools import takewhile

from car_daemon.engine.batching.guesses.odds import LONGEST, Odds, Trials

# Lengths of the occurrences that are searched: the last of the first one, else of the second.
_CONTEXTS = (3, 2)
# Tokens before the end that are searched: bounds the time of a search to some tens of microseconds.
_WINDOW = 16_384
_BYTES = array("i").itemsize


class PromptLookup:
    """The tokens of one request so far, and how often guesses from them were right."""

    def __init__(self, tokens: Iterable[int], odds: Odds | None = None) -> None:
        self.tokens = array("i", tokens)
        self._trials = Trials(odds, len(self.tokens))
        self._length = 0  # of the occurrence that the last guess came from

    def add(self, token: int) -> None:
        """Append the next token of the prompt or the answer."""
        self.tokens.append(token)

    def find(self, most: int) -> tuple[list[int], float]:
        """Return up to `most` tokens to try, and the probability of each; no tokens where nothing occurred before."""
        place = next((place for length in _CONTEXTS if (place := self._last_place(length)) is not None), None)
        if place is None:
            return [], 0.0
        self._length = self._length_at(place)
        # A repetition that reached the end so far is guessed to continue.
        tokens, period = self.tokens, len(self.tokens) - place
        guess = (tokens[place + step % period] for step in range(most))
        # Negative numbers are placeholders of images, and cannot be tried.
        right = list(takewhile(lambda token: token >= 0, guess))
        return right, self._trials.probability(self._length, len(tokens))

    def learn(self, guessed: int, right: int) -> None:
        """Learn from the number of right tokens in the guess that was found last."""
        self._trials.learn(self._length, guessed, right, len(self.tokens))

    def _last_place(self, length: int) -> int | None:
        """Return the place after the last earlier occurrence of the last `length` tokens."""
        tokens = self.tokens
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
        tokens, most = self.tokens, min(LONGEST, place)
        return next((length for length in range(most) if tokens[place - length - 1] != tokens[-length - 1]), most)
