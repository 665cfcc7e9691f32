"""Lengths of prompts and answers."""

from random import Random

from msgspec import Struct

_FORM = "give a length of 1 or more, or two with a dash, the smaller one first"


class Lengths(Struct, frozen=True):
    """Lengths in tokens, uniform between two bounds."""

    low: int
    high: int

    def draw(self, chance: Random) -> int:
        """Return a random length."""
        return chance.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def parse_lengths(text: str) -> Lengths:
    """Parse `64` or `15-105`; raises ValueError."""
    low, dash, high = text.partition("-")
    try:
        lengths = Lengths(int(low), int(high) if dash else int(low))
    except ValueError:
        raise ValueError(_FORM) from None
    if not 1 <= lengths.low <= lengths.high:
        raise ValueError(_FORM)
    return lengths
