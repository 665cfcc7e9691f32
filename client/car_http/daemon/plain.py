"""Chunks of a text alone, cut out of their bytes: decoding them costs more than all else that a token needs."""

import re
from collections.abc import Callable

from car_protocol.envelope import Notification, encode_message
from car_protocol.methods import CHUNK

_NUMBER = b"0"
_TEXT = b',"text":'
_EMPTY = b'""'
_NOT_EMPTY = rb'("(?!")[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*")'


def _parts(call_id: int) -> tuple[bytes, bytes]:
    """Return the bytes of a chunk before its number, and after its text."""
    frame = encode_message(Notification(CHUNK, {"id": call_id, "seq": 0, "text": ""}))
    head, _, tail = frame.partition(_NUMBER + _TEXT + _EMPTY)
    return head, tail


# A chunk behind its head; where it has further members its text is not the end.
_rest = re.compile(b"[0-9]+" + re.escape(_TEXT) + _NOT_EMPTY + re.escape(_parts(1)[1])).match


def head_of(call_id: int) -> bytes:
    """Return the beginning of a call's chunks as the daemon writes them."""
    return _parts(call_id)[0]


def texts_taken(data: bytes, head: bytes, take: Callable[[bytes], bool]) -> bytes:
    """Offer the JSON literal of each text; return the bytes from the first frame on that has more or was not taken."""
    start = 0
    while start < len(data):
        found = _rest(data, start + len(head)) if data.startswith(head, start) else None
        if found is None or not take(found[1]):
            break
        start = found.end()
    return data[start:]
