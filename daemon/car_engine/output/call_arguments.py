"""Heads and arguments of a call, as they come: JSON, tagged parameters, Python's keywords, and Gemma's objects."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from car_base.ipc.types import ParameterKind
from car_engine.output.families import CDATA, Aside, Attribute, Blank, Family, Head, Parameter
from car_engine.output.json_object import copy_value, is_object, take_value, text_of
from car_engine.output.literals import PYTHON, LiteralCopier, as_value, gemma_with, quoted
from car_engine.output.stream_buffer import Markers, Steps, StreamBuffer, only

# A name or an id without quotes, of the characters that names of functions may have.
_WORD = re.compile(r"[A-Za-z0-9_.-]*")
_KEY = re.compile(r"[^<>\"\n]*")
_TYPE = re.compile(r"[a-z]*")
_RUNS = {Blank.NAME: _WORD, Blank.WORD: _WORD, Blank.KEY: _KEY, Blank.TYPE: _TYPE}


class Slots(NamedTuple):
    """The words of a head, whether its last text was there, and whether its tag closes itself."""

    name: str = ""
    key: str = ""
    type: str = ""
    complete: bool = False
    closed: bool = False

    def filled(self, slot: Blank, word: str) -> "Slots":
        """Return the words with another one."""
        match slot:
            case Blank.NAME:
                return self._replace(name=word)
            case Blank.KEY:
                return self._replace(key=word)
            case Blank.TYPE:
                return self._replace(type=word)
            case Blank.WORD:
                return self


def take_slots(buffer: StreamBuffer, head: Head, *, begun: bool = False) -> Steps[Slots | None]:
    """Take the texts and words of a head, with `begun` from the second on; None if a piece is missing."""
    slots = Slots()
    after_word = False
    quoted = begun and isinstance(head[0], str) and head[0].endswith('"')
    for piece in head[1:] if begun else head:
        if isinstance(piece, Blank):
            closes = piece is Blank.KEY and (yield from buffer.peek()) == "/"
            run = _KEY if quoted and piece is Blank.NAME else _RUNS[piece]
            word = "" if closes else (yield from buffer.take_run(run))
            if not word and piece is not Blank.WORD:
                return None
            slots, after_word = slots.filled(piece, word)._replace(complete=False), True
            continue
        text = piece if isinstance(piece, str) else piece.text
        if not after_word or text[0] in " \n<[":
            yield from buffer.take_spaces()
        found = yield from buffer.take_literal(text.strip())
        quoted = text.endswith('"')
        if not found and text.strip() == '">' and (yield from _take_closed(buffer)):
            return slots._replace(complete=True, closed=True)
        if isinstance(piece, str) and not found:
            return None
        if isinstance(piece, Aside) and found:
            yield from buffer.take_run(_WORD)
        if isinstance(piece, Attribute) and found:
            slots = slots.filled(piece.slot, (yield from buffer.take_run(_RUNS[piece.slot])))
        slots, after_word = slots._replace(complete=found), isinstance(piece, Aside | Attribute)
    return slots


def _take_closed(buffer: StreamBuffer) -> Steps[bool]:
    """Take the end of a tag that closes itself."""
    if not (yield from buffer.take_literal('"')):
        return False
    yield from buffer.take_spaces()
    return (yield from buffer.take_literal("/>"))


_KEYWORD = re.compile(r"[^=,()\[\]{}'\"\n]*")
# The beginning of a parameter: a word as long as the longest constant and a letter, or one character.
_HEAD = re.compile(r"[ \t\r\n]{0,16}(?:[A-Za-z]{1,6}|\S)?")
_CONSTANTS = frozenset({"true", "false", "null", "True", "False", "None"})
_VALUES = frozenset('{["-0123456789(<]')  # first characters of values, and of markers
_CDATA_END = Markers(["]]>"])
# Types that a parameter's own tag has.
_KINDS: dict[str, ParameterKind] = {"true": "text", "string": "text"}


@lru_cache(maxsize=256)
def _ends_of(parameter: Parameter, key: str) -> Markers:
    close = parameter.close.format(key=key)
    return Markers([parameter.pad + close, close])


class ArgumentsReader:
    """Reads the arguments of one family's calls from a buffer.

    `ends` may follow arguments that are not JSON, if `counts` says so of the one that was taken; `after` may follow a
    parameter.
    """

    def __init__(
        self,
        family: Family,
        buffer: StreamBuffer,
        ends: Markers,
        after: Markers,
        counts: Callable[[str], Steps[bool]],
        write: Callable[[str], None],
    ) -> None:
        self._family = family
        self._buffer = buffer
        self._ends = ends
        self._after = after
        self._counts = counts
        self._write = write

    def read(self, kinds: Mapping[str, ParameterKind]) -> Steps[None]:
        """Read the arguments after a head; `kinds` are the kinds of the function's parameters."""
        match self._family.notation:
            case "parameters":
                return self._parameters(kinds)
            case "python":
                return self._keywords()
            case "gemma":
                return self._gemma()
        return self.json()

    def json(self) -> Steps[None]:
        """Read arguments that should be an object."""
        yield from self._buffer.drop_spaces()
        opening = yield from self._buffer.peek()
        if opening == '"':
            # Some models write the object as a text.
            value = yield from take_value(self._buffer)
            text = text_of(value)
            taken = self._buffer.release()
            self._write(text if text is not None and is_object(text) else taken)
            yield from self._raw(value is not None)
        elif opening == "{":
            yield from self._raw((yield from copy_value(self._buffer, self._write)))
        else:
            yield from self._raw(complete=False)

    def _raw(self, complete: bool) -> Steps[None]:
        """Read arguments that did not turn out as an object as they are, up to a marker."""
        if complete or not (yield from self._buffer.peek()):
            return
        while (marker := (yield from self._buffer.copy_until_any(self._ends, self._write))) is not None:
            if (yield from self._counts(marker)):
                self._buffer.put_back()
                return
            self._write(self._buffer.release())
        self._write(self._buffer.release())

    def _gemma(self) -> Steps[None]:
        """Read an object of Gemma's."""
        yield from self._raw(
            (yield from LiteralCopier(gemma_with(self._family.quote), self._buffer, self._write).copy())
        )

    def _parameters(self, kinds: Mapping[str, ParameterKind]) -> Steps[None]:
        """Read tagged parameters."""
        parameter = self._parameter_syntax
        separator = "{"
        while True:
            yield from self._buffer.drop_spaces()
            slots = yield from take_slots(self._buffer, parameter.open)
            if slots is None:
                if not self._buffer.cut or (yield from self._buffer.peek()):
                    self._buffer.put_back()
                if (yield from self._begins_parameter()):
                    # Its head cannot be read, so the call is invalid: without the parameter it would be another call.
                    yield from self._raw(complete=False)
                    return
                break
            self._buffer.drop()
            key = self._family.name_of(slots.key)
            self._write(f'{separator}"{quoted(key)}": ')
            separator = ", "
            kind = _KINDS.get(slots.type, "value") if slots.type else kinds.get(key, "any")
            if slots.closed:
                self._write(as_value("", kind))
            else:
                yield from self._parameter(_ends_of(parameter, key), kind)
        self._write_end("" if separator == "{" else "}")

    def _begins_parameter(self) -> Steps[bool]:
        """Return whether the first text of a parameter's head comes next, and no end of the call that begins alike."""
        first = self._parameter_syntax.open[0]
        if not isinstance(first, str) or (yield from self._buffer.sees(self._ends)):
            return False
        return (yield from self._buffer.sees(only(first.strip())))

    @property
    def _parameter_syntax(self) -> Parameter:
        assert self._family.parameter is not None
        return self._family.parameter

    def _parameter(self, ends: Markers, kind: ParameterKind) -> Steps[None]:
        """Read the value of a parameter, up to its end."""
        parameter = self._parameter_syntax
        if parameter.pad:
            yield from self._buffer.take_literal(parameter.pad)
            self._buffer.drop()
        if kind == "any":
            # Its first characters may show already that it is a text.
            head = (yield from self._buffer.peek_match(_HEAD)).lstrip()
            kind = "text" if head and head[0] not in _VALUES and head not in _CONSTANTS else kind
        if kind == "text" and not parameter.cdata:
            self._write('"')
            if (yield from self._copy_parameter(ends, lambda text: self._write(quoted(text)))):
                self._write('"')
            self._buffer.drop()
            return
        value = yield from self._json_parameter(ends)
        if value is None:
            value = yield from self._other_parameter(ends)
        self._buffer.drop()
        if value is not None:
            self._write(as_value(value, kind))

    def _json_parameter(self, ends: Markers) -> Steps[str | None]:
        """Take a JSON value and the end after it; None for other texts. Ends within the value's texts do not count."""
        if (yield from self._buffer.peek()) in ("{", "[", '"'):
            value = yield from take_value(self._buffer)
            yield from self._buffer.take_spaces()
            if value is not None and (yield from self._buffer.take_marker(ends)) is not None:
                return value
            self._buffer.put_back()
        return None

    def _other_parameter(self, ends: Markers) -> Steps[str | None]:
        """Take any text, up to its end; None if the answer ended before."""
        pieces = list[str]()
        if self._parameter_syntax.cdata and (yield from self._buffer.take_literal(CDATA)):
            pieces.append(self._buffer.release())
            yield from self._buffer.copy_until_any(_CDATA_END, pieces.append, close=True)
            pieces.append(self._buffer.release())
        return "".join(pieces) if (yield from self._copy_parameter(ends, pieces.append)) else None

    def _copy_parameter(self, ends: Markers, out: Callable[[str], None]) -> Steps[bool]:
        """Release the text of a parameter up to its end; return whether it ended.

        The text of an end counts if another parameter, the end of the call or nothing follows it; else it is a part of
        the parameter, as in a file that has such texts.
        """
        buffer = self._buffer
        while (yield from buffer.copy_until_any(ends, out, close=True)) is not None:
            yield from buffer.take_spaces()
            if (yield from buffer.sees(self._after)) or not (yield from buffer.peek()):
                return True
            out(buffer.release())
        return False

    def _keywords(self) -> Steps[None]:
        """Read keyword arguments of Python, up to the bracket that closes them."""
        buffer = self._buffer
        copier = LiteralCopier(PYTHON, buffer, self._write)
        separator = "{"
        while True:
            yield from buffer.drop_spaces()
            if (yield from buffer.peek()) in (")", ""):
                break
            key = (yield from buffer.take_run(_KEYWORD)).strip()
            if not key or not (yield from buffer.take_literal("=")):
                yield from self._raw(complete=False)
                return
            buffer.drop()
            self._write(f'{separator}"{quoted(key)}": ')
            separator = ", "
            if not (yield from copier.copy()):
                yield from self._raw(complete=False)
                return
            yield from buffer.drop_spaces()
            yield from buffer.take_literal(",")
        self._write_end("" if separator == "{" else "}")

    def _write_end(self, text: str) -> None:
        """Write a closing text, except if the answer's bound cut the call off."""
        if not self._buffer.cut:
            self._write(text)
