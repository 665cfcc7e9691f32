"""The tokens of a model, as prompts need them: llama.cpp's in production, bytes in tests."""

from typing import NamedTuple, Protocol


class FillTokens(NamedTuple):
    """A model's tokens before a prefix, before a suffix, and at the end, where the middle comes."""

    prefix: int
    suffix: int
    middle: int


class Separators(NamedTuple):
    """The tokens before the query, between query and document, and after the document."""

    start: list[int]
    middle: list[int]
    end: list[int]


class PromptVocabulary(Protocol):
    """The tokens of a model."""

    size: int
    """Their number."""
    specials: list[str]
    """The texts of all control tokens."""
    begin: int
    """The token that begins a text; -1 for none."""
    adds_begin: bool
    """True if every text has to begin with it."""
    end: int
    """The token that ends a turn; -1 for none."""

    @property
    def fill(self) -> FillTokens | None:
        """The tokens around a gap to fill; None for a model that fills none."""
        ...

    @property
    def separators(self) -> Separators:
        """The tokens around a query and a document."""
        ...

    def text_of(self, token: int) -> str:
        """Return a token's text, also a control token's; empty for -1."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens."""
        ...

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write tokens out."""
        ...
