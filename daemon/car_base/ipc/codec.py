"""Encoding of frames: a 4-byte length, then one msgpack Struct."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from car_base.ipc.frames import FromEngine, PlainText, Prepared, StepDone, ToEngine, TokenIds

# Because a length is a claim of the other process: the longest frames in use have 40 MiB, the tokens of 8 MiB of text.
MAX_FRAME_BYTES = 64 * 1024 * 1024
# Because the daemon decodes nothing else meanwhile: three lines and some figures are shorter in any script.
MAX_REPORT_BYTES = 64 * 1024
_LENGTH_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode


def _head(kind: type[Struct]) -> bytes:
    """Return the first bytes of a kind's frames: the number of their members, and the tag."""
    members = 1 + len(kind.__struct_fields__)
    return bytes([0x80 | members]) + _encode({"type": kind.__name__})[1:]


# The kinds with texts, tokens or images. Their numbers are packed and their lists bounded, so that they decode fast.
LONG_KINDS = tuple(_head(kind) for kind in (Prepared, TokenIds, PlainText, StepDone))
_HEAD_BYTES = max(map(len, LONG_KINDS))
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def encode_frame(message: Struct) -> bytes:
    """Return the message with its length in front."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameTooLong(Exception):
    """A frame announces more bytes than a reader accepts; the message has both numbers."""


class FrameReader:
    """Cut length-prefixed frames of at most `max_bytes` from a byte stream of any chunking.

    Frames that do not begin with one of `long` have at most MAX_REPORT_BYTES; without any all may be long.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES, *, long: Sequence[bytes] = ()) -> None:
        self._max_bytes = max_bytes
        self._long = tuple(long)
        self._buffer = bytearray()  # bytes of the unfinished frame

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that `data` completes; raises FrameTooLong before the frame is buffered."""
        buffer = self._buffer
        buffer += data
        bodies = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            length = int.from_bytes(buffer[start:body], "little")
            if length > self._max_bytes:
                raise FrameTooLong(f"a frame announces {length:,} bytes, the limit is {self._max_bytes:,}")
            if length > MAX_REPORT_BYTES and self._long:
                if len(buffer) < body + _HEAD_BYTES:
                    break
                if not buffer.startswith(self._long, body):
                    raise FrameTooLong(
                        f"a frame without text or tokens announces {length:,} bytes, the limit is {MAX_REPORT_BYTES:,}"
                    )
            end = body + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                bodies.append(bytes(view[body:end]))
            start = end
        del buffer[:start]
        return bodies
