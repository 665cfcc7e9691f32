"""Prompt lookup: what followed the same few tokens before is guessed to follow again."""

from collections.abc import Callable, Iterable
from itertools import takewhile

# So many tokens have to have been seen together before.
_CONTEXT = 3
_LENGTHS = (3, 7, 15, 31)
# A guess has to promise this much over taking one token at a time.
_WORTH = 1.1
# What a guess is hoped to be worth before any was tried: how likely each of its tokens is to be right.
_HOPE = 0.9
_LEARNING = 0.15
# After so many tokens without a guess, another one is tried.
_REST = 128


class Lookup:
    """The tokens of one request so far, and how often guesses from them came true."""

    def __init__(self, tokens: Iterable[int]) -> None:
        # Mutable state: the tokens, where those after each context stand, the hope in each token, tokens without guess.
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._hope = _HOPE
        self._rested = 0
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Take the next token of the prompt or the answer."""
        if len(self._tokens) >= _CONTEXT:
            self._after[tuple(self._tokens[-_CONTEXT:])] = len(self._tokens)
        self._tokens.append(token)

    def guess(self, cost: Callable[[int], float], room: int) -> list[int]:
        """Return the tokens to try, none where that does not pay by `cost` (seconds of a decode of so many rows)."""
        place = self._after.get(tuple(self._tokens[-_CONTEXT:]))
        length = 0 if place is None else self._length(cost, room)
        if place is None or not length:
            self._rest()
            return []
        self._rested = 0
        # What repeats itself goes on repeating itself.
        period = len(self._tokens) - place
        guess = (self._tokens[place + step % period] for step in range(length))
        # Numbers below 0 hold the places of images, and cannot be tried.
        return list(takewhile(lambda token: token >= 0, guess))

    def judge(self, guessed: int, right: int) -> None:
        """Learn how many tokens of a guess were right."""
        tried = right + (right < guessed)
        weight = 1 - (1 - _LEARNING) ** tried
        self._hope += weight * (right / tried - self._hope)

    def _length(self, cost: Callable[[int], float], most: int) -> int:
        """Return how many tokens to guess for the best rate, 0 where one at a time is as good."""
        rates = {length: self._expected(length) / cost(1 + length) for length in _LENGTHS if length <= most}
        best = max(rates, key=rates.__getitem__, default=0)
        return best if best and rates[best] * cost(1) > _WORTH else 0

    def _expected(self, length: int) -> float:
        """Return how many tokens a decode with a guess of this length is expected to bring."""
        return sum(self._hope**right for right in range(length + 1))

    def _rest(self) -> None:
        self._rested += 1
        if self._rested >= _REST:
            self._rested = 0
            self._hope = max(self._hope, _HOPE)
