"""Encoding of frames: a 4-byte length, then one msgpack Struct, in which tokens and vectors are packed bytes."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count

import msgspec
from msgspec import Struct

from car_base.ipc.frames import (
    Forget,
    FromEngine,
    PlainText,
    Prepare,
    Prepared,
    PrepareTexts,
    Reading,
    StepDone,
    ToEngine,
    TokenIds,
)

TOKEN_BYTES = 4
_NUMBER_BYTES = 8
_encode = msgspec.msgpack.Encoder().encode
_decode_reading = msgspec.msgpack.Decoder(Reading).decode


def packed_tokens(tokens: Iterable[int]) -> bytes:
    """Return tokens as int32 values."""
    return array("i", tokens).tobytes()


def tokens_of(packed: bytes) -> list[int]:
    """Return packed tokens; bytes after the last whole one count for nothing."""
    return memoryview(packed)[: len(packed) // TOKEN_BYTES * TOKEN_BYTES].cast("i").tolist()


def packed_vector(vector: Iterable[float]) -> bytes:
    """Return a vector as 64-bit floats."""
    return array("d", vector).tobytes()


def vector_of(packed: bytes) -> list[float]:
    """Return a packed vector; bytes after the last whole number count for nothing."""
    numbers = array("d")
    numbers.frombytes(memoryview(packed)[: len(packed) // _NUMBER_BYTES * _NUMBER_BYTES])
    return numbers.tolist()


def packed_reading(reading: Reading) -> bytes:
    """Return how to read an answer as bytes, which the daemon carries from engine to engine and need not decode."""
    return _encode(reading)


def unpacked_reading(packed: bytes) -> Reading:
    """Return how to read an answer: as text, if nothing was packed. Raises msgspec.MsgspecError."""
    return _decode_reading(packed) if packed else Reading()


# Because a length is a claim of the other process: the longest frames in use have 40 MiB, the tokens of 8 MiB of text.
MAX_FRAME_BYTES = 64 * 1024 * 1024
# Because the daemon decodes nothing else meanwhile: three lines and some figures are shorter in any script.
MAX_REPORT_BYTES = 64 * 1024
LENGTH_BYTES = 4

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
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


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
        while len(buffer) - start >= LENGTH_BYTES:
            body = start + LENGTH_BYTES
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


class UnsentFrames:
    """Encoded frames in their order; a prompt leaves once its request is to be forgotten.

    So the prompts belong to live requests, whose bytes the queue bounds.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._frames: OrderedDict[int, bytes] = OrderedDict()  # by number
        self._prompts: dict[int, int] = {}  # numbers of prompts, by the key of their request

    def __repr__(self) -> str:
        return f"<UnsentFrames {len(self._frames)}>"

    def add(self, message: Struct, frame: bytes) -> None:
        """Append the frame of a message."""
        number = next(self._numbers)
        if isinstance(message, Forget):
            self._frames.pop(self._prompts.pop(message.key, -1), None)
        elif isinstance(message, Prepare | PrepareTexts):
            self._prompts[message.key] = number
        self._frames[number] = frame

    def take(self) -> bytes | None:
        """Remove and return the oldest frame; None without any."""
        if not self._frames:
            self._prompts.clear()
            return None
        return self._frames.popitem(last=False)[1]
