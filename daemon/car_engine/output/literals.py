"""Values that are not written as JSON, as JSON: Python's literals, and Gemma's objects."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from car_engine.output.json_object import MAX_DEPTH, is_json
from car_engine.output.stream_buffer import Markers, Steps, StreamBuffer

_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_LAST, _FIRST_SURROGATE, _SURROGATES = 0x10FFFF, 0xD800, 0x7FF
_CODES = {"x": 2, "u": 4, "U": 8}


class Dialect(NamedTuple):
    """A notation of values: its quotes, and a pattern of words, which are keys, numbers and names of constants."""

    quotes: tuple[str, ...]
    word: re.Pattern[str]
    escapes: bool


PYTHON = Dialect(("'", '"'), re.compile(r"[^\s,:=()\[\]{}'\"]*"), escapes=True)


@cache
def gemma_with(quote: str) -> Dialect:
    """Return the notation of Gemma's objects with its own quote of texts."""
    return Dialect((quote, '"'), re.compile(r"[^\s,:{}\[\]<\"]*"), escapes=False)


def quoted(text: str) -> str:
    """Return a text as a piece of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class LiteralCopier:
    """Copies values of a dialect as JSON, as they come."""

    def __init__(self, dialect: Dialect, buffer: StreamBuffer, out: Callable[[str], None]) -> None:
        self._dialect = dialect
        self._buffer = buffer
        self._out = out
        self._quotes = Markers(dialect.quotes)
        self._ends = {quote: Markers([quote, "\\"] if dialect.escapes else [quote]) for quote in dialect.quotes}

    def copy(self) -> Steps[bool]:
        """Copy one value; return whether it is complete. Its closing bracket is the last that is taken."""
        closers: list[str] = []
        while True:
            yield from self._buffer.drop_spaces()
            character = yield from self._buffer.peek()
            if closers and character == closers[-1]:
                yield from self._buffer.take_literal(character)
                self._close(closers)
            elif character in _CLOSERS and len(closers) < MAX_DEPTH:
                yield from self._buffer.take_literal(character)
                self._buffer.drop()
                self._out("{" if character == "{" else "[")
                closers.append(_CLOSERS[character])
                continue
            elif not (yield from self._scalar(is_key=False)):
                return False
            if not (yield from self._go_on(closers)):
                return not closers

    def _close(self, closers: list[str]) -> None:
        self._buffer.drop()
        self._out("}" if closers.pop() == "}" else "]")

    def _go_on(self, closers: list[str]) -> Steps[bool]:
        """Copy brackets that close and the separator; return whether another value follows."""
        while closers:
            yield from self._buffer.drop_spaces()
            if (yield from self._buffer.take_literal(closers[-1])):
                self._close(closers)
            elif (yield from self._buffer.take_literal(",")):
                yield from self._buffer.drop_spaces()
                # A comma may stand before a closing bracket.
                if (yield from self._buffer.peek()) != closers[-1]:
                    self._out(", ")
                    return True
            elif (yield from self._buffer.take_literal(":")):
                self._buffer.drop()
                self._out(": ")
                return True
            else:
                return False
        return False

    def _scalar(self, *, is_key: bool) -> Steps[bool]:
        quote = yield from self._buffer.take_marker(self._quotes)
        if quote is not None:
            return (yield from self._text(quote))
        word = yield from self._buffer.take_run(self._dialect.word)
        self._buffer.drop()
        yield from self._buffer.drop_spaces()
        follows = yield from self._buffer.peek()
        if not word:
            return False
        # A word that is neither a constant nor a number is a text without quotes, such as a key.
        plain = _WORDS.get(word, word)
        self._out(plain if follows != ":" and is_json(plain) else f'"{quoted(word)}"')
        return True

    def _text(self, quote: str) -> Steps[bool]:
        self._buffer.drop()
        self._out('"')
        while True:
            marker = yield from self._buffer.copy_until_any(
                self._ends[quote], lambda text: self._out(quoted(text)), close=True
            )
            self._buffer.drop()
            if marker != "\\":
                break
            yield from self._escape()
        if marker is not None:
            self._out('"')
        return marker is not None

    def _escape(self) -> Steps[None]:
        character = yield from self._buffer.peek()
        yield from self._buffer.take_literal(character)
        digits = ""
        while len(digits) < _CODES.get(character, 0):
            digit = yield from self._buffer.peek()
            if not digit or digit not in "0123456789abcdefABCDEF":
                break
            yield from self._buffer.take_literal(digit)
            digits += digit
        self._buffer.drop()
        if character in _CODES:
            code = int(digits or "0", 16)
            valid = code <= _LAST and code & ~_SURROGATES != _FIRST_SURROGATE
            self._out(quoted(chr(code)) if valid else "\ufffd")
        else:
            known = _ESCAPES.get(character)
            self._out(quoted(known if known is not None else ("" if character in "'\"\\" else "\\") + character))
