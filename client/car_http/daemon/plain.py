"""Chunks of a text alone, cut out of their bytes: decoding them costs more than all else that a token needs."""

import re

from car_protocol.envelope import Notification, encode_message
from car_protocol.methods import CHUNK

_NUMBER = b"0"
_EMPTY = b'""'
_NOT_EMPTY = rb'"(?!")([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"'


def _pattern() -> bytes:
    """Return the pattern of a chunk as the daemon writes it; where it has further members its text is not the end."""
    frame = encode_message(Notification(CHUNK, {"id": 0, "seq": 0, "text": ""}))
    return re.escape(frame).replace(_NUMBER, b"[0-9]+", 2).replace(_EMPTY, _NOT_EMPTY)


_chunk = re.compile(_pattern()).match


def leading_text(data: bytes) -> tuple[bytes, bytes]:
    """Return the text of the chunks at the beginning, without the quotes of its JSON literal, and the other bytes."""
    texts = []
    start = 0
    while found := _chunk(data, start):
        texts.append(found[1])
        start = found.end()
    return b"".join(texts), data[start:]
