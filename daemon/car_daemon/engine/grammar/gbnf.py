"""Read GBNF, the notation of grammars that llama.cpp takes."""

import re

from car_daemon.engine.grammar.recursion import refuse_left_recursion
from car_daemon.engine.grammar.tree import (
    CHARACTERS,
    LAST,
    Alternatives,
    Characters,
    Grammar,
    GrammarError,
    Item,
    Literal,
    Problem,
    Reference,
    Repetition,
    Sequence,
    characters_in,
    complement,
    merged,
)

NESTING_MAX = 100
ITEMS_MAX = 100_000
REPETITIONS_MAX = 100_000

_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIGITS = re.compile(r"0*([0-9]*)")
_PLAIN = re.compile(r'[^"\\]+')
_HEXADECIMAL = {"x": re.compile("[0-9A-Fa-f]{2}"), "u": re.compile("[0-9A-Fa-f]{4}"), "U": re.compile("[0-9A-Fa-f]{8}")}
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"} | {itself: itself for itself in '\\"[]-'}
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str) -> Grammar:
    """Return the grammar that a text writes; `GrammarError` if it writes none that can be used."""
    grammar = _Reader(text).grammar()
    refuse_left_recursion(grammar)
    return grammar


class _Reader:
    """Reads from the front to the back, a character at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        # Mutable state: the position, its line once asked for, how deep in groups it is, and what was read before.
        self._at = 0
        self._line_known = (0, 1)
        self._nesting = 0
        self._items = 0
        self._rules: dict[str, Alternatives] = {}
        self._unnamed = 0
        self._referred: dict[str, int] = {}

    def grammar(self) -> Grammar:
        """Return all rules; one that is written twice says what it says last."""
        self._skip(lines=True)
        while self._next():
            self._rule()
        if "root" not in self._rules:
            raise self._refusal(Problem.NO_ROOT, 0)
        for name, at in self._referred.items():
            if name not in self._rules:
                raise self._refusal(Problem.UNDEFINED, at)
        return Grammar(self._rules)

    def _rule(self) -> None:
        line = self._line()
        name = self._match(_NAME)
        if not name:
            raise self._refusal(Problem.NO_NAME)
        self._skip(lines=False)
        if not self._text.startswith("::=", self._at):
            raise self._refusal(Problem.NO_BODY)
        self._at += 3
        self._skip(lines=True)
        self._rules[name] = Alternatives(self._alternatives(), line)
        if self._next() not in ("", "\r", "\n"):
            raise self._refusal(Problem.UNEXPECTED)
        self._skip(lines=True)

    def _alternatives(self) -> tuple[Sequence, ...]:
        sequences = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            self._skip(lines=True)
            sequences.append(self._sequence())
        return tuple(sequences)

    def _sequence(self) -> Sequence:
        self._count_items(1)
        items: list[Item] = []
        while following := self._next():
            if following in "*+?{":
                items[-1:] = [self._repetition(items)]
            elif (item := self._item(following)) is not None:
                self._count_items(1)
                items.append(item)
            else:
                break
            self._skip(lines=self._nesting > 0)
        return tuple(items)

    def _item(self, following: str) -> Item | None:
        """Return the item that begins here; None if none does."""
        match following:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                self._at += 1
                return Characters(CHARACTERS)
            case "<" | "!":
                raise self._refusal(Problem.NOT_CHARACTERS)
            case _:
                return self._reference()

    def _reference(self) -> Reference | None:
        at = self._at
        name = self._match(_NAME)
        if not name:
            return None
        self._referred.setdefault(name, at)
        return Reference(name)

    def _group(self) -> Reference:
        start, line = self._at, self._line()
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise self._refusal(Problem.TOO_DEEP)
        self._at += 1
        self._skip(lines=True)
        sequences = self._alternatives()
        if self._next() != ")":
            raise self._refusal(Problem.UNEXPECTED) if self._next() else self._refusal(Problem.OPEN_GROUP, start)
        self._at += 1
        self._nesting -= 1
        return self._add_unnamed(sequences, line)

    def _add_unnamed(self, sequences: tuple[Sequence, ...], line: int) -> Reference:
        self._unnamed += 1
        name = f"({self._unnamed})"
        self._rules[name] = Alternatives(sequences, line)
        return Reference(name)

    def _repetition(self, items: list[Item]) -> Repetition:
        """Return the last item under the repetition that stands here."""
        start = self._at
        if not items:
            raise self._refusal(Problem.NOTHING_REPEATED)
        self._count_items(1)
        least, most = self._counts()
        if most is not None and most < least:
            raise self._refusal(Problem.REVERSED_COUNT, start)
        item = items[-1]
        if isinstance(item, Repetition):
            item = self._add_unnamed(((item,),), self._line())
        return Repetition(item, least, most)

    def _counts(self) -> tuple[int, int | None]:
        following = self._next()
        self._at += 1
        if following != "{":
            return _COUNTS[following]
        least = self._number()
        if least is None:
            raise self._refusal(Problem.COUNT)
        most: int | None = least
        if self._next() == ",":
            self._at += 1
            most = self._number()
        if self._next() != "}":
            raise self._refusal(Problem.COUNT)
        self._at += 1
        return least, most

    def _number(self) -> int | None:
        """Return the number between spaces here; None if there is none."""
        self._skip(lines=self._nesting > 0)
        match = _DIGITS.match(self._text, self._at)
        assert match is not None
        if not match[0]:
            return None
        if len(match[1]) > len(str(REPETITIONS_MAX)) or int(match[0]) > REPETITIONS_MAX:
            raise self._refusal(Problem.LARGE_COUNT)
        self._at = match.end()
        self._skip(lines=self._nesting > 0)
        return int(match[0])

    def _literal(self) -> Literal:
        start = self._at
        self._at += 1
        parts = []
        while (following := self._next()) != '"':
            if not following:
                raise self._refusal(Problem.OPEN_LITERAL, start)
            parts.append(self._match(_PLAIN) or self._escaped_character())
        self._at += 1
        text = "".join(parts)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self._refusal(Problem.NO_CHARACTER, start)
        return Literal(text)

    def _escaped_character(self) -> str:
        start = self._at
        code = self._code_point()
        if code > LAST:
            raise self._refusal(Problem.NO_CHARACTER, start)
        return chr(code)

    def _class(self) -> Characters:
        start = self._at
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges = []
        while self._next() != "]":
            ranges.append(self._range(start))
        self._at += 1
        held = merged(ranges)
        resolved = characters_in(complement(held) if negated else held)
        if not ranges or not resolved:
            raise self._refusal(Problem.EMPTY_CLASS, start)
        return Characters(resolved)

    def _range(self, start: int) -> tuple[int, int]:
        low = high = self._class_member(start)
        if self._next() == "-" and not self._text.startswith("]", self._at + 1):
            self._at += 1
            high = self._class_member(start)
        if low > LAST:
            raise self._refusal(Problem.NO_CHARACTER)
        if high < low:
            raise self._refusal(Problem.REVERSED_RANGE)
        self._count_items(1)
        return low, min(high, LAST)

    def _class_member(self, start: int) -> int:
        if not self._next():
            raise self._refusal(Problem.OPEN_CLASS, start)
        return self._code_point()

    def _code_point(self) -> int:
        """Return the number of the character here, which may be written as an escape."""
        if self._next() != "\\":
            self._at += 1
            return ord(self._text[self._at - 1])
        kind = self._text[self._at + 1 : self._at + 2]
        if kind in _ESCAPED:
            self._at += 2
            return ord(_ESCAPED[kind])
        digits = _HEXADECIMAL[kind].match(self._text, self._at + 2) if kind in _HEXADECIMAL else None
        if digits is None:
            raise self._refusal(Problem.ESCAPE)
        self._at = digits.end()
        return int(digits[0], 16)

    def _count_items(self, number: int) -> None:
        self._items += number
        if self._items > ITEMS_MAX:
            raise self._refusal(Problem.TOO_LARGE)

    def _next(self) -> str:
        """Return the character here; nothing at the end."""
        return self._text[self._at : self._at + 1]

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _skip(self, *, lines: bool) -> None:
        self._match(_SPACE_AND_LINES if lines else _SPACE)

    def _line(self) -> int:
        """Return the line here, counted from the last one that was asked for."""
        at, line = self._line_known
        line += self._text.count("\n", at, self._at)
        self._line_known = (self._at, line)
        return line

    def _refusal(self, problem: Problem, at: int | None = None) -> GrammarError:
        return GrammarError(problem, self._text.count("\n", 0, self._at if at is None else at) + 1)
