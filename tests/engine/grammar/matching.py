"""Shared by the grammar tests: llguidance over single bytes, and an independent recognizer."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.grammar.tree import Characters, Grammar, Item, Literal, Reference, Repetition, Sequence

END = 256


class Bytes:
    """A vocabulary of all single bytes and an end."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    special_token_ids = (END,)
    eos_token_id = END
    bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def tokenizer() -> LLTokenizer:
    """Return the vocabulary as llguidance takes it."""
    vocabulary: Any = Bytes()
    return LLTokenizer(TokenizerWrapper(vocabulary))


def matcher(gbnf: str | Grammar) -> LLMatcher:
    """Return a matcher for a grammar that must be good."""
    lark = as_lark(parse(gbnf) if isinstance(gbnf, str) else gbnf)
    made = LLMatcher(tokenizer(), LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + lark), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(gbnf: str, text: str) -> bool:
    """Say whether the grammar takes the text from its beginning to its end."""
    made = matcher(gbnf)
    data = list(text.encode())
    return made.try_consume_tokens(data) == len(data) and bool(made.is_accepting())


class Recognizer:
    """Finds where each part of a grammar could end in a text: the sets that the definition of GBNF gives."""

    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar = grammar
        self._text = text
        self._known: dict[tuple[str, int], frozenset[int]] = {}
        self._touches_end = False
        self._accepted = len(text) in self._rule("root", 0)

    @property
    def accepts(self) -> bool:
        """Return whether the text is of the grammar."""
        return self._accepted

    @property
    def viable(self) -> bool:
        """Return whether the text is, or a character may follow it."""
        return self._accepted or self._touches_end

    def _rule(self, name: str, start: int) -> frozenset[int]:
        if (name, start) not in self._known:
            sequences = self._grammar.rules[name].sequences
            self._known[name, start] = frozenset(end for one in sequences for end in self._sequence(one, start))
        return self._known[name, start]

    def _sequence(self, sequence: Sequence, start: int) -> set[int]:
        places = {start}
        for item in sequence:
            places = self._items(item, places)
        return places

    def _items(self, item: Item, places: Iterable[int]) -> set[int]:
        return {end for place in places for end in self._item(item, place)}

    def _item(self, item: Item, start: int) -> Iterable[int]:
        match item:
            case Characters(ranges):
                return self._character(ranges, start)
            case Literal(text):
                return self._literal(text, start)
            case Reference(name):
                return self._rule(name, start)
            case Repetition():
                return self._repetition(item, start)

    def _character(self, ranges: Iterable[tuple[int, int]], start: int) -> Iterator[int]:
        if start == len(self._text):
            self._touches_end = True
        elif any(low <= ord(self._text[start]) <= high for low, high in ranges):
            yield start + 1

    def _literal(self, text: str, start: int) -> Iterable[int]:
        places = {start}
        for character in text:
            ranges = [(ord(character), ord(character))]
            places = {end for place in places for end in self._character(ranges, place)}
        return places

    def _repetition(self, item: Repetition, start: int) -> set[int]:
        places = {start}
        for _ in range(item.least):
            places = self._items(item.item, places)
        ends = set(places)
        rounds = len(self._text) + 1 if item.most is None else item.most - item.least
        for _ in range(rounds):
            places = self._items(item.item, places)
            if places <= ends:
                break
            ends |= places
        return ends
