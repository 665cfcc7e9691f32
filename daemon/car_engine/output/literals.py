"""Values that are not written as JSON, as JSON: Python's literals, Gemma's objects, and tagged parameters."""

import json
import re
from ast import literal_eval
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.json import encode

from car_base.ipc.types import ParameterKind
from car_engine.output.json_object import is_json
from car_engine.output.stream_buffer import Markers, Steps, StreamBuffer
from car_protocol.conversation import Function
from car_protocol.limits import MAX_DEPTH

_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_LAST, _FIRST_SURROGATE, _SURROGATES = 0x10FFFF, 0xD800, 0x7FF
_CODES = {"x": 2, "u": 4, "U": 8}


class Notation(NamedTuple):
    """A notation of values: its quotes, and a pattern of words, which are keys, numbers and names of constants."""

    quotes: tuple[str, ...]
    word: re.Pattern[str]
    escapes: bool


PYTHON = Notation(("'", '"'), re.compile(r"[^\s,:=()\[\]{}'\"]*"), escapes=True)


@cache
def gemma_with(quote: str) -> Notation:
    """Return the notation of Gemma's objects with its own quote of texts."""
    return Notation((quote, '"'), re.compile(r"[^\s,:{}\[\]<\"]*"), escapes=False)


def quoted(text: str) -> str:
    """Return a text as a piece of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class LiteralCopier:
    """Copies values of a dialect as JSON, as they come."""

    def __init__(self, dialect: Notation, buffer: StreamBuffer, out: Callable[[str], None]) -> None:
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
            elif not (yield from self._scalar()):
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

    def _scalar(self) -> Steps[bool]:
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


# Kinds of the parameters of each function.
Kinds = Mapping[str, Mapping[str, ParameterKind]]
_DEEPEST = 8
_MOST_LITERAL = 100_000
_CDATA = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
# MiniMax M3 writes objects and arrays as nested tags after this mark.
_MARK = "]<]minimax[>["
_NESTED = re.compile(re.escape(_MARK) + r"<(/?)([^<>]*)>")
_MOST_NESTED = 64


def kinds_of(functions: list[Function]) -> dict[str, dict[str, ParameterKind]]:
    """Return the kinds of the parameters of functions, by their schemas."""
    return {
        function.name: {key: _kind(schema, function.parameters) for key, schema in _properties(function).items()}
        for function in functions
    }


def _properties(function: Function) -> dict[str, Any]:
    properties = function.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def _kind(schema: Any, root: dict[str, Any]) -> ParameterKind:
    types = _types(schema, root, depth=_DEEPEST)
    if "string" not in types:
        return "value" if types else "any"
    return "text" if types == {"string"} else "any"


def resolved(schema: dict[str, Any], key: str, root: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a property by itself: without a reference at its top, with the root's definitions."""
    root = schema if root is None else root
    found: Any = schema["properties"][key]
    for _ in range(_DEEPEST):
        if not isinstance(found, dict) or not isinstance(reference := found.get("$ref"), str):
            break
        found = referred(reference, root)
    found = found if isinstance(found, dict) else {}
    return {**{each: root[each] for each in ("$defs", "definitions") if each in root}, **found}


def referred(reference: str, root: Any) -> Any:
    """Return the schema that a reference within a schema names, None if there is none."""
    target: Any = root
    for part in filter(None, reference.removeprefix("#").split("/")):
        target = target.get(part) if isinstance(target, dict) else None
    return target


def listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """Return the list of a schema's keyword, empty if the keyword is missing or has another value."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _types(schema: Any, root: dict[str, Any], depth: int) -> set[str]:
    """Return the names of the types that a schema allows, empty if it does not list them."""
    if not isinstance(schema, dict) or not depth:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(referred(reference, root), root, depth - 1)
    if (kind := schema.get("type")) is not None:
        return {kind} if isinstance(kind, str) else set(map(str, listed(schema, "type")))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {"string" if isinstance(value, str) else "value" for value in values}
    found = [_types(each, root, depth - 1) for key in ("anyOf", "oneOf") for each in listed(schema, key)]
    return set().union(*found) if found and all(found) else set()


def as_value(text: str, kind: ParameterKind) -> str:
    """Return a parameter's text as JSON: a value if it is one, else a text."""
    bare = text.strip()
    if found := _CDATA.fullmatch(bare):
        return json.dumps(found[1], ensure_ascii=False)
    if kind == "text":
        return json.dumps(text, ensure_ascii=False)
    if is_json(bare):
        return bare
    if _MARK in text:
        return encode(_nested(text)).decode()
    if (value := _python(bare)) is not None:
        return value
    return json.dumps(text, ensure_ascii=False)


def _python(text: str) -> str | None:
    """Return a Python literal as JSON, because several templates write such values; None for anything else."""
    if not text or len(text) > _MOST_LITERAL or (text[0] not in "[{(" and text not in ("True", "False", "None")):
        return None
    try:
        value = json.dumps(literal_eval(text), ensure_ascii=False, allow_nan=False)
        value.encode()  # fails for half of a surrogate pair, which a literal can name and no text has
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value


def _nested(text: str) -> Any:
    """Return what nested tags stand for: `item`s are an array, other names the members of an object."""
    stack: list[tuple[str, list[tuple[str, Any]]]] = [("", [])]
    done = 0
    for tag in _NESTED.finditer(text):
        between, done = text[done : tag.start()], tag.end()
        if not tag[1]:
            if len(stack) > _MOST_NESTED:
                return text
            stack.append((tag[2], []))
        elif len(stack) > 1 and stack[-1][0] == tag[2]:
            name, members = stack.pop()
            stack[-1][1].append((name, _members(members) if members else _plain(between)))
        else:
            return text
    return _members(stack[0][1]) if len(stack) == 1 and stack[0][1] else text


def _members(members: list[tuple[str, Any]]) -> Any:
    if all(name == "item" for name, _ in members):
        return [value for _, value in members]
    return dict(members)


def _plain(text: str) -> Any:
    return Raw(text) if is_json(text) else text
