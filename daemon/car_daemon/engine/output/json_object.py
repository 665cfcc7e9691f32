"""A JSON object in a text: where it ends, and the call of a function that it may be."""

import re
from typing import Annotated

from msgspec import Meta, MsgspecError, Raw, Struct
from msgspec.json import Decoder

from car_daemon.engine.output.tape import Steps, Tape, end_of
from car_protocol.conversation import FunctionCall

MAX_DEPTH = 64

_CLOSERS = {"{": "}", "[": "]"}
_BETWEEN = re.compile(r"[ \t\r\n,:0-9+\-.eEtrufalsn]*")
_INSIDE = re.compile(r'[^"\\\x00-\x1f]*')


class ObjectScanner:
    """Find the end of an object after its opening brace; whether it is JSON is only looked over."""

    def __init__(self) -> None:
        # Mutable state: the brackets to come, whether a string and an escape in it are open, and whether it failed.
        self._closers = ["}"]
        self._in_string = False
        self._escaped = False
        self.failed = False

    @property
    def ended(self) -> bool:
        """Whether the object is complete or cannot become one."""
        return self.failed or not self._closers

    def scan(self, text: str, at: int) -> int:
        """Return up to where the text from `at` on belongs to the object."""
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


def take_object(tape: Tape) -> Steps[str | None]:
    """Take what looks like an object and return it; None where it fails, with what was taken until then."""
    mark = tape.mark()
    if not (yield from tape.take_literal("{")):
        return None
    scanner = ObjectScanner()
    tape.take(scanner.scan)
    while not scanner.ended:
        if not (yield from tape.more()):
            return None
        tape.take(scanner.scan)
    return None if scanner.failed else tape.since(mark)


class _Call(Struct):
    name: Annotated[str, Meta(min_length=1)]
    arguments: Raw = Raw()
    parameters: Raw = Raw()


_CALL = Decoder(_Call)
_VALUE = Decoder(Raw)


def read_call(text: str) -> FunctionCall | None:
    """Return the call that an object with a name and arguments (or parameters) describes, these as written."""
    try:
        call = _CALL.decode(text)
    except MsgspecError:
        return None
    arguments = bytes(call.arguments) or bytes(call.parameters)
    return FunctionCall(call.name, arguments.decode()) if arguments.startswith(b"{") else None


def read_arguments(name: str, text: str) -> FunctionCall | None:
    """Return the call of a function with these arguments, if they are JSON."""
    try:
        _VALUE.decode(text)
    except MsgspecError:
        return None
    return FunctionCall(name, text)
