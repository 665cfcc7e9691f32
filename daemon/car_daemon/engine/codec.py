"""Frames as bytes: a 4-byte length, then one msgpack Struct."""

import msgspec
from msgspec import Struct

from car_daemon.engine.frames import FromEngine, ToEngine

_LENGTH_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def encode_frame(message: Struct) -> bytes:
    """Return the message with its length in front."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameReader:
    """Cut length-prefixed frames from a byte stream of any chunking."""

    def __init__(self) -> None:
        # Mutable state: the bytes of the unfinished frame.
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that `data` completes."""
        buffer = self._buffer
        buffer += data
        bodies = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            end = body + int.from_bytes(buffer[start:body], "little")
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[body:end]))
            start = end
        del buffer[:start]
        return bodies
