"""Reader of GBNF, llama.cpp's notation of grammars."""

import re

from car_engine.grammar.lark import refuse_left_recursion
from car_engine.grammar.tree import (
    CHARACTERS,
    ITEMS_MAX,
    LAST,
    NESTING_MAX,
    REPETITIONS_MAX,
    Alternatives,
    Characters,
    Grammar,
    GrammarError,
    GrammarProblem,
    Item,
    Literal,
    Reference,
    Repetition,
    Sequence,
    characters_in,
    complement,
    merged,
)

_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIGITS = re.compile(r"[0-9]*")
_PLAIN = re.compile(r'[^"\\]+')
_HEXADECIMAL = {"x": re.compile("[0-9A-Fa-f]{2}"), "u": re.compile("[0-9A-Fa-f]{4}"), "U": re.compile("[0-9A-Fa-f]{8}")}
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"} | {itself: itself for itself in '\\"[]-'}
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str) -> Grammar:
    """Return the grammar of a text; raises GrammarError."""
    grammar = _Reader(text).grammar()
    refuse_left_recursion(grammar)
    return grammar


class _Cursor:
    """A position in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._line_known = (0, 1)  # a position and its line, from which lines are counted on

    def next(self) -> str:
        """Return the character at this position, empty at the end."""
        return self._text[self.at : self.at + 1]

    def follows(self, text: str) -> bool:
        """Return whether the character here is followed by this text."""
        return self._text.startswith(text, self.at + 1)

    def take(self, text: str) -> bool:
        """Advance past this text; False if another one comes next."""
        taken = self._text.startswith(text, self.at)
        self.at += len(text) if taken else 0
        return taken

    def match(self, pattern: re.Pattern[str]) -> str:
        """Advance past the match of a pattern and return it, empty if it does not match."""
        match = pattern.match(self._text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match[0]

    def skip(self, *, lines: bool) -> None:
        """Advance past spaces and comments, with `lines` also past ends of lines."""
        self.match(_SPACE_AND_LINES if lines else _SPACE)

    def code_point(self) -> int:
        """Return the code point of the character at this position, which may be an escape."""
        if self.next() != "\\":
            self.at += 1
            return ord(self._text[self.at - 1])
        kind = self._text[self.at + 1 : self.at + 2]
        if kind in _ESCAPED:
            self.at += 2
            return ord(_ESCAPED[kind])
        digits = _HEXADECIMAL[kind].match(self._text, self.at + 2) if kind in _HEXADECIMAL else None
        if digits is None:
            raise self.refusal(GrammarProblem.ESCAPE)
        self.at = digits.end()
        return int(digits[0], 16)

    def literal(self) -> Literal:
        """Return the literal whose quote is at this position."""
        start = self.at
        self.at += 1
        text = ""
        while not self.take('"'):
            at = self.at
            if not self.next():
                raise self.refusal(GrammarProblem.OPEN_LITERAL, start)
            if plain := self.match(_PLAIN):
                text += plain
            elif (code := self.code_point()) <= LAST:
                text += chr(code)
            else:
                raise self.refusal(GrammarProblem.NO_CHARACTER, at)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self.refusal(GrammarProblem.NO_CHARACTER, start)
        return Literal(text)

    def class_member(self, start: int) -> int:
        """Return the code point of a character in the class that begins at `start`."""
        if not self.next():
            raise self.refusal(GrammarProblem.OPEN_CLASS, start)
        return self.code_point()

    def line(self) -> int:
        """Return the line of this position, counted from the last result."""
        at, line = self._line_known
        line += self._text.count("\n", at, self.at)
        self._line_known = (self.at, line)
        return line

    def refusal(self, problem: GrammarProblem, at: int | None = None) -> GrammarError:
        """Return the error of a problem here, or at another position."""
        return GrammarError(problem, self._text.count("\n", 0, self.at if at is None else at) + 1)


class _Reader:
    """Reads a text from front to back, a character at a time."""

    def __init__(self, text: str) -> None:
        self._cursor = _Cursor(text)
        self._nesting = 0  # groups around the position
        self._items = 0
        self._rules: dict[str, Alternatives] = {}
        self._unnamed = 0
        self._referred: dict[str, int] = {}  # names of rules, by their first use

    def grammar(self) -> Grammar:
        """Return all rules; of a name that is defined twice the last definition counts."""
        self._cursor.skip(lines=True)
        while self._cursor.next():
            line = self._cursor.line()
            name = self._cursor.match(_NAME)
            if not name:
                raise self._cursor.refusal(GrammarProblem.NO_NAME)
            self._cursor.skip(lines=False)
            if not self._cursor.take("::="):
                raise self._cursor.refusal(GrammarProblem.NO_BODY)
            self._cursor.skip(lines=True)
            self._rules[name] = Alternatives(self._alternatives(), line)
            if self._cursor.next() not in ("", "\r", "\n"):
                raise self._cursor.refusal(GrammarProblem.UNEXPECTED)
            self._cursor.skip(lines=True)
        if "root" not in self._rules:
            raise self._cursor.refusal(GrammarProblem.NO_ROOT, 0)
        for name, at in self._referred.items():
            if name not in self._rules:
                raise self._cursor.refusal(GrammarProblem.UNDEFINED, at)
        return Grammar(self._rules)

    def _alternatives(self) -> tuple[Sequence, ...]:
        sequences = [self._sequence()]
        while self._cursor.take("|"):
            self._cursor.skip(lines=True)
            sequences.append(self._sequence())
        return tuple(sequences)

    def _sequence(self) -> Sequence:
        self._count_item()
        items: list[Item] = []
        while following := self._cursor.next():
            if following in "*+?{":
                items[-1:] = [self._repetition(items)]
            elif (item := self._item(following)) is not None:
                self._count_item()
                items.append(item)
            else:
                break
            self._cursor.skip(lines=self._nesting > 0)
        return tuple(items)

    def _item(self, following: str) -> Item | None:
        """Return the item that begins here, None if the sequence ends."""
        match following:
            case '"':
                return self._cursor.literal()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                self._cursor.at += 1
                return Characters(CHARACTERS)
            case "<" | "!":
                raise self._cursor.refusal(GrammarProblem.NOT_CHARACTERS)
        at = self._cursor.at
        if name := self._cursor.match(_NAME):
            self._referred.setdefault(name, at)
            return Reference(name)
        return None

    def _group(self) -> Reference:
        cursor = self._cursor
        start, line = cursor.at, cursor.line()
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise cursor.refusal(GrammarProblem.TOO_DEEP)
        cursor.at += 1
        cursor.skip(lines=True)
        sequences = self._alternatives()
        if not cursor.take(")"):
            raise (
                cursor.refusal(GrammarProblem.UNEXPECTED)
                if cursor.next()
                else cursor.refusal(GrammarProblem.OPEN_GROUP, start)
            )
        self._nesting -= 1
        return self._add_unnamed(sequences, line)

    def _add_unnamed(self, sequences: tuple[Sequence, ...], line: int) -> Reference:
        self._unnamed += 1
        name = f"({self._unnamed})"
        self._rules[name] = Alternatives(sequences, line)
        return Reference(name)

    def _repetition(self, items: list[Item]) -> Repetition:
        """Return the last item under the repetition at this position."""
        start = self._cursor.at
        if not items:
            raise self._cursor.refusal(GrammarProblem.NOTHING_REPEATED)
        self._count_item()
        cursor = self._cursor
        least: int | None
        if not cursor.take("{"):
            least, most = _COUNTS[cursor.next()]
            cursor.at += 1
        else:
            least = self._number()
            if least is None:
                raise cursor.refusal(GrammarProblem.COUNT)
            most = self._number() if cursor.take(",") else least
            if not cursor.take("}"):
                raise cursor.refusal(GrammarProblem.COUNT)
        if most is not None and most < least:
            raise self._cursor.refusal(GrammarProblem.REVERSED_COUNT, start)
        item = items[-1]
        if isinstance(item, Repetition):
            item = self._add_unnamed(((item,),), self._cursor.line())
        return Repetition(item, least, most)

    def _number(self) -> int | None:
        """Return the number at this position, between spaces; None if there is no digit."""
        cursor = self._cursor
        cursor.skip(lines=self._nesting > 0)
        start = cursor.at
        digits = cursor.match(_DIGITS)
        if not digits:
            return None
        # Without leading zeros, because Python refuses to read thousands of digits.
        digits = digits.lstrip("0") or "0"
        if len(digits) > len(str(REPETITIONS_MAX)) or int(digits) > REPETITIONS_MAX:
            raise cursor.refusal(GrammarProblem.LARGE_COUNT, start)
        cursor.skip(lines=self._nesting > 0)
        return int(digits)

    def _class(self) -> Characters:
        cursor = self._cursor
        start = cursor.at
        cursor.at += 1
        negated = cursor.take("^")
        ranges = []
        while not cursor.take("]"):
            low = high = cursor.class_member(start)
            if cursor.next() == "-" and not cursor.follows("]"):
                cursor.at += 1
                high = cursor.class_member(start)
            if low > LAST:
                raise cursor.refusal(GrammarProblem.NO_CHARACTER)
            if high < low:
                raise cursor.refusal(GrammarProblem.REVERSED_RANGE)
            self._count_item()
            ranges.append((low, min(high, LAST)))
        listed = merged(ranges)
        resolved = characters_in(complement(listed) if negated else listed)
        if not ranges or not resolved:
            raise cursor.refusal(GrammarProblem.EMPTY_CLASS, start)
        return Characters(resolved)

    def _count_item(self) -> None:
        self._items += 1
        if self._items > ITEMS_MAX:
            raise self._cursor.refusal(GrammarProblem.TOO_LARGE)
