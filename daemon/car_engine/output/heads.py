"""Heads of calls and of parameters: their texts and words, taken from an answer."""

import re
from typing import NamedTuple

from car_engine.output.families import Aside, Head, Slot
from car_engine.output.stream_buffer import Steps, StreamBuffer

# A name or an id without quotes, of the characters that names of functions may have.
_WORD = re.compile(r"[A-Za-z0-9_.-]*")
_KEY = re.compile(r"[^<>\"\n]*")
_TYPE = re.compile(r"[a-z]*")
_RUNS = {Slot.NAME: _WORD, Slot.WORD: _WORD, Slot.KEY: _KEY, Slot.TYPE: _TYPE}


class Slots(NamedTuple):
    """The words of a head, whether its last text was there, and whether its tag closes itself."""

    name: str = ""
    key: str = ""
    type: str = ""
    complete: bool = False
    closed: bool = False

    def filled(self, slot: Slot, word: str) -> "Slots":
        """Return the words with another one."""
        match slot:
            case Slot.NAME:
                return self._replace(name=word)
            case Slot.KEY:
                return self._replace(key=word)
            case Slot.TYPE:
                return self._replace(type=word)
            case Slot.WORD:
                return self


def take_slots(buffer: StreamBuffer, head: Head, *, begun: bool = False) -> Steps[Slots | None]:
    """Take the texts and words of a head, with `begun` from the second on; None where one of them is missing."""
    slots = Slots()
    after_word = False
    quoted = begun and isinstance(head[0], str) and head[0].endswith('"')
    for piece in head[1:] if begun else head:
        if isinstance(piece, Slot):
            closes = piece is Slot.KEY and (yield from buffer.peek()) == "/"
            run = _KEY if quoted and piece is Slot.NAME else _RUNS[piece]
            word = "" if closes else (yield from buffer.take_run(run))
            if not word and piece is not Slot.WORD:
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
        slots, after_word = slots._replace(complete=found), isinstance(piece, Aside)
    return slots


def _take_closed(buffer: StreamBuffer) -> Steps[bool]:
    """Take the end of a tag that closes itself."""
    return (yield from buffer.take_literal('"/>')) or (yield from buffer.take_literal('" />'))
