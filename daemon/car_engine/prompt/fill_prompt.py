"""A gap between two texts as the prompt of a model that fills in the middle."""

from typing import NamedTuple, Protocol


class FillTokens(NamedTuple):
    """A model's tokens before a prefix, before a suffix, and at the end, where the middle comes."""

    prefix: int
    suffix: int
    middle: int


class FillVocabulary(Protocol):
    """The tokens of a model."""

    @property
    def begin(self) -> int:
        """The token that begins a text."""
        ...

    @property
    def adds_begin(self) -> bool:
        """True if every text has to begin with it."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens."""
        ...


def fill_prompt(
    vocabulary: FillVocabulary, fill: FillTokens, prefix: str, suffix: str, *, parse_special: bool
) -> list[int]:
    """Return the prompt whose answer stands between two texts: the prefix first, as such models are trained most."""
    before, after = (
        vocabulary.tokenize(text, add_special=False, parse_special=parse_special) for text in (prefix, suffix)
    )
    begin = [vocabulary.begin] if vocabulary.adds_begin else []
    return [*begin, fill.prefix, *before, fill.suffix, *after, fill.middle]
