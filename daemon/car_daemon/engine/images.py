"""Which images may be decoded: their format and size are read from their headers, before any decoder sees them."""

import re
import zlib
from binascii import a2b_base64
from collections.abc import Iterator
from typing import NamedTuple

MAX_BYTES = 5 * 1024 * 1024
MAX_SIDE = 8192
MAX_PIXELS = 16_000_000
# Of the long side to the short one: what a projector scales to no pixels at all ends the process.
MAX_RATIO = 50
# The rows of the largest image, four bytes a pixel; a file of a few megabytes may hold gigabytes.
MAX_INFLATED_BYTES = 4 * MAX_PIXELS + 1024 * 1024
# A decoder goes over the whole picture for each scan, however short it is.
MAX_SCANS = 100
# Decoding a code takes as long as the row of codes that it repeats: up to 8 seconds a megabyte.
MAX_GIF_BYTES = 256 * 1024
_MAX_SEGMENTS = 65536
_INFLATED_AT_ONCE = 65536

_NO_BASE64 = "the image is not valid base64"
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_GIFS = (b"GIF87a", b"GIF89a")
_FRAMES = {0xC0, 0xC1, 0xC2}
_PLAIN_SEGMENTS = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}
_SCAN = b"\xff\xda"
_NO_FILL = re.compile(rb"[^\xff]")
_FRAME_BYTES = 8
_GIF_SCREEN = 13
_GIF_FRAME = 10


class ImageError(Exception):
    """An image cannot be taken; the message is a fixed text."""


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def decode_base64(text: str) -> bytes:
    """Return the bytes that a base64 text stands for; raises ImageError for any other text and for too many bytes."""
    if len(text) > -(-MAX_BYTES // 3) * 4:
        raise ImageError("the image has too many bytes")
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ImageError(_NO_BASE64) from None
    # Padding after whole groups passes for strict.
    if len(text) != -(-len(data) // 3) * 4:
        raise ImageError(_NO_BASE64)
    return data


def check_image(data: bytes) -> Size:
    """Return the size of a PNG, JPEG or GIF that is safe to decode; raises ImageError for all else."""
    if len(data) > MAX_BYTES:
        raise ImageError("the image has too many bytes")
    if data.startswith(_PNG):
        return _png(data)
    if data.startswith(_JPEG):
        return _jpeg(data)
    if data.startswith(_GIFS):
        return _gif(data)
    raise ImageError("the image is no PNG, JPEG or GIF")


def _bounded(width: int, height: int) -> Size:
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE) or width * height > MAX_PIXELS:
        raise ImageError("the image has too many pixels, or none")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ImageError("the image is too long and narrow")
    return Size(width, height)


def _damaged() -> ImageError:
    return ImageError("the image is damaged")


def _png(data: bytes) -> Size:
    chunks = _png_chunks(data)
    kind, header = next(chunks, (b"", memoryview(b"")))
    if kind != b"IHDR" or len(header) != 13:
        raise _damaged()
    size = _bounded(_big(header, 0, 4), _big(header, 4, 4))
    _check_inflated(chunks)
    return size


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and the content of each chunk before the last."""
    view = memoryview(data)
    start = len(_PNG)
    for _ in range(_MAX_SEGMENTS):
        length, kind = _big(data, start, 4), data[start + 4 : start + 8]
        if kind == b"IEND":
            return
        stop = start + 8 + length
        if stop + 4 > len(data):
            raise _damaged()
        yield kind, view[start + 8 : stop]
        start = stop + 4
    raise ImageError("the image has too many parts")


def _check_inflated(chunks: Iterator[tuple[bytes, memoryview]]) -> None:
    """Inflate a PNG's rows piece by piece and keep none; raises ImageError for too many."""
    inflater = zlib.decompressobj()
    room = MAX_INFLATED_BYTES
    try:
        for kind, content in chunks:
            if kind == b"IHDR":
                raise _damaged()
            if kind == b"IDAT":
                room -= _inflate(inflater, content, room)
    except zlib.error:
        raise _damaged() from None
    if not inflater.eof:
        raise _damaged()


def _inflate(inflater: "zlib._Decompress", content: memoryview, room: int) -> int:
    """Return how many bytes a part of the rows inflates to; raises ImageError where they are more than `room`."""
    count = 0
    # What is not consumed yet is copied each time, so little is given at once.
    for start in range(0, len(content), _INFLATED_AT_ONCE):
        left: bytes | memoryview = content[start : start + _INFLATED_AT_ONCE]
        while left and not inflater.eof:
            count += len(inflater.decompress(left, _INFLATED_AT_ONCE))
            if count > room:
                raise ImageError("the image inflates to too many bytes")
            left = inflater.unconsumed_tail
    return count


def _jpeg(data: bytes) -> Size:
    if data.count(_SCAN) > MAX_SCANS:
        raise ImageError("the image has too many parts")
    for marker, start in _jpeg_segments(data):
        if marker in _FRAMES:
            if _big(data, start, 2) < _FRAME_BYTES:
                raise _damaged()
            return _bounded(width=_big(data, start + 5, 2), height=_big(data, start + 3, 2))
        if marker not in _PLAIN_SEGMENTS:
            raise ImageError("the image is a JPEG of a kind that is not supported")
    raise ImageError("the image has too many parts")


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each segment's marker and where its length stands, the way decoders look for them."""
    start = 2
    for _ in range(_MAX_SEGMENTS):
        fill = data.find(b"\xff", start)
        marker = _NO_FILL.search(data, fill) if fill >= 0 else None
        if marker is None:
            raise _damaged()
        yield marker[0][0], marker.end()
        length = _big(data, marker.end(), 2)
        if length < 2:
            raise _damaged()
        start = marker.end() + length


def _gif(data: bytes) -> Size:
    if len(data) > MAX_GIF_BYTES:
        raise ImageError("the GIF has too many bytes")
    size = _bounded(_little(data, 6), _little(data, 8))
    frame = _first_frame(data, _GIF_SCREEN + _table_bytes(_byte(data, 10)))
    left, top, width, height = (_little(data, frame + place) for place in (1, 3, 5, 7))
    if not (1 <= width <= size.width - left and 1 <= height <= size.height - top):
        raise _damaged()
    return size


def _first_frame(data: bytes, start: int) -> int:
    """Return where a GIF's first frame begins, after the extensions that stand before it."""
    while (kind := _byte(data, start)) != 0x2C:
        if kind != 0x21:
            raise _damaged()
        start += 2
        while length := _byte(data, start):
            start += 1 + length
        start += 1
    if start + _GIF_FRAME > len(data):
        raise _damaged()
    return start


def _table_bytes(flags: int) -> int:
    """Return the bytes of the colour table that a GIF's flags announce."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _byte(data: bytes, start: int) -> int:
    if start >= len(data):
        raise _damaged()
    return data[start]


def _big(data: bytes | memoryview, start: int, count: int) -> int:
    if start + count > len(data):
        raise _damaged()
    return int.from_bytes(data[start : start + count], "big")


def _little(data: bytes, start: int) -> int:
    if start + 2 > len(data):
        raise _damaged()
    return int.from_bytes(data[start : start + 2], "little")
