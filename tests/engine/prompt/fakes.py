"""A vocabulary whose control tokens a test chooses."""

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

from car_engine.prompt.vocabulary import FillTokens, Separators

Done = TypeVar("Done")


class FakeVocabulary:
    """Tokens below 256 are bytes, those above are the control tokens."""

    def __init__(self, specials: Sequence[str], *, begin: str = "", end: str = "", adds_begin: bool = False) -> None:
        self.size = 256 + len(specials)
        self.fill: FillTokens | None = None
        self.separators = Separators([], [], [])
        self.specials = list(specials)
        self.begin = self._token(begin)
        self.end = self._token(end)
        self.adds_begin = adds_begin
        longest_first = sorted(specials, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def text_of(self, token: int) -> str:
        """Return a control token's text; empty for none."""
        return self.specials[token - 256] if token >= 256 else ""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens."""
        assert not add_special
        if not parse_special or not self.specials:
            return list(text.encode())
        tokens: list[int] = []
        for piece in self._special.split(text):
            tokens += [self._token(piece)] if piece in self.specials else piece.encode()
        return tokens

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write tokens out, control tokens if `special`."""
        return self.written(tokens if special else [token for token in tokens if token < 256])

    def written(self, tokens: Sequence[int]) -> str:
        """Write tokens out, control tokens as their texts."""
        return b"".join(self.text_of(t).encode() if t >= 256 else bytes([t]) for t in tokens).decode()

    def controls(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts of the control tokens among tokens."""
        return [self.text_of(token) for token in tokens if token >= 256]

    def _token(self, special: str) -> int:
        return 256 + self.specials.index(special) if special else -1


def finished(steps: Generator[None, None, Done]) -> Done:
    """Take all steps of a job; return its answer."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        done: Done = end.value
        return done
