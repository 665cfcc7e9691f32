"""Chunks of a text alone, cut out of their bytes: decoding them costs more than all else that a token needs."""

from car_protocol.envelope import Notification, encode_message
from car_protocol.methods import CHUNK

_NUMBER = b"0"
_TEXT = b',"text":'
_EMPTY = b'""'


def _parts(call_id: int) -> tuple[bytes, bytes]:
    """Return the bytes of a chunk before its number, and after its text."""
    frame = encode_message(Notification(CHUNK, {"id": call_id, "seq": 0, "text": ""}))
    head, _, tail = frame.partition(_NUMBER + _TEXT + _EMPTY)
    return head, tail


_TAIL = _parts(1)[1]
_END = b'"' + _TAIL
# Those behind the number, of a text without any: a further member, an escaped quote or a second frame has more.
_QUOTES = (_TEXT + _EMPTY + _TAIL).count(b'"')


def head_of(call_id: int) -> bytes:
    """Return the beginning of a call's chunks as the daemon writes them."""
    return _parts(call_id)[0]


def plain_text(data: bytes, head: bytes) -> bytes | None:
    """Return the text's JSON literal, None where the bytes are not one whole chunk of a text alone."""
    if not (data.startswith(head) and data.endswith(_END)):
        return None
    place = data.find(_TEXT, len(head))
    if place < 0 or data.count(b'"', place) != _QUOTES or not data[len(head) : place].isdigit():
        return None
    text = data[place + len(_TEXT) : -len(_TAIL)]
    return None if text == _EMPTY else text
