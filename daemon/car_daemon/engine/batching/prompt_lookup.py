"""Prompt lookup: guess that the tokens after an earlier occurrence of the last few tokens follow again."""

from collections.abc import Callable, Iterable
from itertools import takewhile

# Length of the occurrence.
_CONTEXT = 3
_LENGTHS = (3, 7, 15, 31)
# A guess has to promise this many times the rate of one token at a time.
_WORTH = 1.1
# Assumed probability of each guessed token before any guess was tried.
_PRIOR = 0.9
_LEARNING = 0.15
# After this many tokens without a guess another one is tried.
_REST = 128


class PromptLookup:
    """The tokens of one request so far, and the success rate of guesses from them."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # Place after the last occurrence of each few tokens.
        self._probability = _PRIOR  # Of each guessed token.
        self._rested = 0  # Tokens since the last guess.
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Append the next token of the prompt or the answer."""
        if len(self._tokens) >= _CONTEXT:
            self._after[tuple(self._tokens[-_CONTEXT:])] = len(self._tokens)
        self._tokens.append(token)

    def guess(self, cost: Callable[[int], float], room: int) -> list[int]:
        """Return the tokens to try, empty where that does not pay by `cost` (seconds of a decode by rows)."""
        place = self._after.get(tuple(self._tokens[-_CONTEXT:]))
        # Expected tokens of a decode with a guess, to its cost.
        rates = {
            length: sum(self._probability**right for right in range(length + 1)) / cost(1 + length)
            for length in _LENGTHS
            if length <= room and place is not None
        }
        length = max(rates, key=rates.__getitem__, default=0)
        if place is None or not length or rates[length] * cost(1) <= _WORTH:
            self._rested += 1
            if self._rested >= _REST:
                self._rested = 0
                self._probability = max(self._probability, _PRIOR)
            return []
        self._rested = 0
        # A repetition that reached the end so far is guessed to continue.
        period = len(self._tokens) - place
        guess = (self._tokens[place + step % period] for step in range(length))
        # Negative numbers are placeholders of images, and cannot be tried.
        return list(takewhile(lambda token: token >= 0, guess))

    def learn(self, guessed: int, right: int) -> None:
        """Learn from the number of right tokens in a guess."""
        tried = right + (right < guessed)
        weight = 1 - (1 - _LEARNING) ** tried
        self._probability += weight * (right / tried - self._probability)
