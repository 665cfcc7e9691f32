"""JSON in a text that arrives in pieces: the end of a value, strings, and a check of arguments."""

import re
from collections.abc import Callable

from msgspec import MsgspecError, Raw
from msgspec.json import Decoder

from car_engine.output.stream_buffer import Steps, StreamBuffer, end_of
from car_protocol.limits import MAX_DEPTH

_CLOSERS = {"{": "}", "[": "]"}
_BETWEEN = re.compile(r"[ \t\r\n,:0-9+\-.eEtrufalsn]*")
_INSIDE = re.compile(r'[^"\\\x00-\x1f]*')
_PLAIN = re.compile(r"[0-9+\-.eEtrufalsn]*")
_VALUE = Decoder(Raw)
_TEXT = Decoder(str)


class ValueScanner:
    """Find the end of an object or an array after its opening bracket; its JSON is checked only superficially."""

    def __init__(self, opening: str = "{") -> None:
        self._closers = [_CLOSERS[opening]]  # of the open brackets, innermost last
        self._in_string = False
        self._escaped = False
        self.failed = False

    @property
    def ended(self) -> bool:
        """True if the value is complete or cannot become one."""
        return self.failed or not self._closers

    def scan(self, text: str, at: int) -> int:
        """Return the end of the value's part of a text from `at` on."""
        while at < len(text) and not self.ended:
            at = self._inside(text, at) if self._in_string else self._between(text, at)
        return at

    def _inside(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = end_of(_INSIDE, text, at)
        if at == len(text):
            return at
        self._in_string = text[at] != '"'
        self._escaped = text[at] == "\\"
        self.failed = self._in_string and not self._escaped
        return at if self.failed else at + 1

    def _between(self, text: str, at: int) -> int:
        at = end_of(_BETWEEN, text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_string = True
        elif text[at] in _CLOSERS and len(self._closers) < MAX_DEPTH:
            self._closers.append(_CLOSERS[text[at]])
        elif text[at] == self._closers[-1]:
            self._closers.pop()
        else:
            self.failed = True
        return at if self.failed else at + 1


class _StringScanner:
    """Find the end of a string after its opening quote."""

    def __init__(self) -> None:
        self._escaped = False
        self.ended = False
        self.failed = False

    def scan(self, text: str, at: int) -> int:
        """Return the end of the string's part of a text from `at` on."""
        while at < len(text) and not self.ended:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            at = end_of(_INSIDE, text, at)
            if at < len(text):
                self._escaped = text[at] == "\\"
                self.failed = not self._escaped and text[at] != '"'
                self.ended = not self._escaped
                at += not self.failed
        return at


def copy_value(buffer: StreamBuffer, out: Callable[[str], None]) -> Steps[bool]:
    """Release a JSON value as it comes; return whether it is complete. Anything else ends it."""
    opening = yield from buffer.peek()
    if opening not in _CLOSERS and opening != '"':
        yield from buffer.take_run(_PLAIN)
        value = buffer.release()
        out(value)
        return bool(value)
    yield from buffer.take_literal(opening)
    scanner = _StringScanner() if opening == '"' else ValueScanner(opening)
    while True:
        buffer.take(scanner.scan)
        out(buffer.release())
        if scanner.ended:
            return not scanner.failed
        if not (yield from buffer.more()):
            return False


def take_value(buffer: StreamBuffer) -> Steps[str | None]:
    """Take a JSON value and return it; None if the text is not JSON, though its valid start is taken all the same."""
    opening = yield from buffer.peek()
    if opening not in _CLOSERS and opening != '"':
        return (yield from buffer.take_run(_PLAIN)) or None
    mark = buffer.mark()
    yield from buffer.take_literal(opening)
    scanner = _StringScanner() if opening == '"' else ValueScanner(opening)
    buffer.take(scanner.scan)
    while not scanner.ended:
        if not (yield from buffer.more()):
            return None
        buffer.take(scanner.scan)
    return None if scanner.failed else buffer.since(mark)


def text_of(value: str | None) -> str | None:
    """Return the text that a JSON string stands for; None for other values."""
    if value is None or not value.startswith('"'):
        return None
    try:
        return _TEXT.decode(value)
    except MsgspecError:
        return None


def is_json(text: str) -> bool:
    """Return whether a text is one JSON value, which does not nest deeper than the interpreter reads."""
    try:
        _VALUE.decode(text)
    except (MsgspecError, RecursionError):
        return False
    return True


def is_object(text: str) -> bool:
    """Return whether a text is one JSON object."""
    return text.startswith("{") and is_json(text)
