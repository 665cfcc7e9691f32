"""Image files in requests: their bounds, from headers alone, and the parts that a decoder needs.

Sizes are read before any decoder runs: counting an image's positions in the tokenizer thread must stay cheap. Metadata
never reach the decoder: reading 4,000 colour profiles took Pillow 10 seconds.
"""

import re
from binascii import a2b_base64
from collections.abc import Iterator
from typing import NamedTuple

from car_base.ipc.types import DAMAGED_IMAGE

MAX_BYTES = 5 * 1024 * 1024
MAX_SIDE = 8192
MAX_PIXELS = 16_000_000
# Long side to short side: an image that a projector scales to 0 pixels ends the process.
MAX_RATIO = 50
# A decoder passes over the whole picture for each scan, however short the scan is.
MAX_SCANS = 100
MAX_PARTS = 65536

_TOO_MANY_BYTES = f"the image has too many bytes: the limit is {MAX_BYTES:,}"
_TOO_MANY_PARTS = f"the image has too many parts: the limit is {MAX_PARTS:,}, and {MAX_SCANS} scans of a JPEG"
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_GIFS = (b"GIF87a", b"GIF89a")
_IHDR_BYTES = 13
# The letter case of a PNG chunk's first byte says whether decoders need it.
_ANCILLARY = 0x20
_FRAMES = {0xC0, 0xC1, 0xC2}
# Tables of codes, quantization and restarts; of applications' segments the two that say how colours are stored.
_NEEDED = {*_FRAMES, 0xC4, 0xDB, 0xDD, 0xE0, 0xEE}
_METADATA = {*range(0xE0, 0xF0), 0xFE} - _NEEDED
_SCAN = 0xDA
_NO_FILL = re.compile(rb"[^\xff]")
_FRAME_BYTES = 8
_GIF_SCREEN = 13
_GIF_FRAME = 0x2C
_GIF_EXTENSION = 0x21
# The extension that says which colour is transparent.
_GIF_CONTROL = 0xF9


class MediaError(Exception):
    """A file of a request that is refused; the message says why."""


class ImageError(MediaError):
    """An image that is refused; the message is a fixed text."""


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class ImageFile(NamedTuple):
    """An image within bounds: its size, and its file without metadata."""

    size: Size
    data: bytes


def decode_base64(text: str, kind: str = "image") -> bytes:
    """Return the bytes of a base64 text; raises MediaError for any other text and for more than MAX_BYTES."""
    if len(text) > -(-MAX_BYTES // 3) * 4:
        raise MediaError(f"the {kind} has too many bytes: the limit is {MAX_BYTES:,}")
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError:
        raise MediaError(f"the {kind} is not valid base64") from None
    # Strict mode accepts padding after whole groups.
    if len(text) != -(-len(data) // 3) * 4:
        raise MediaError(f"the {kind} is not valid base64")
    return data


def read_image(data: bytes) -> ImageFile:
    """Return a PNG, JPEG or GIF whose header is within bounds; raises ImageError. The picture may still be damaged."""
    if len(data) > MAX_BYTES:
        raise ImageError(_TOO_MANY_BYTES)
    if data.startswith(_PNG):
        return _png(data)
    if data.startswith(_JPEG):
        return _jpeg(data)
    if data.startswith(_GIFS):
        return _gif(data)
    raise ImageError("the image is not a PNG, JPEG or GIF")


def damaged() -> ImageError:
    """Return the error of a file that is not a whole image."""
    return ImageError(DAMAGED_IMAGE)


def _bounded(width: int, height: int) -> Size:
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise ImageError(
            f"the image has {width} x {height} pixels: the limits are {MAX_SIDE:,} a side and {MAX_PIXELS:,} in all"
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ImageError(f"the image has {width} x {height} pixels: the limit is {MAX_RATIO} to 1")
    return Size(width, height)


def _png(data: bytes) -> ImageFile:
    chunks = list(_png_chunks(data))
    kind, chunk = chunks[0]
    if kind != b"IHDR" or len(chunk) != 12 + _IHDR_BYTES:
        raise damaged()
    size = _bounded(_big(chunk, 8, 4), _big(chunk, 12, 4))
    return ImageFile(size, b"".join([_PNG, *(chunk for kind, chunk in chunks if not kind[0] & _ANCILLARY)]))


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type of each chunk, and all of its bytes; the last is IEND."""
    view = memoryview(data)
    start = len(_PNG)
    for _ in range(MAX_PARTS):
        stop = start + 12 + _big(data, start, 4)
        if stop > len(data):
            raise damaged()
        kind = data[start + 4 : start + 8]
        yield kind, view[start:stop]
        if kind == b"IEND":
            return
        start = stop
    raise ImageError(_TOO_MANY_PARTS)


def _jpeg(data: bytes) -> ImageFile:
    if data.count(bytes([0xFF, _SCAN])) > MAX_SCANS:
        raise ImageError(_TOO_MANY_PARTS)
    size = None
    kept = [data[:2]]
    for marker, start, stop in _jpeg_segments(data):
        if marker == _SCAN and size is not None:
            # Everything from the first scan on is left to the decoder.
            return ImageFile(size, b"".join([*kept, data[start:]]))
        if marker not in _NEEDED | _METADATA:
            raise ImageError("the image is a JPEG of a kind that is not supported: baseline and progressive are")
        if marker in _FRAMES:
            if stop - start < 2 + _FRAME_BYTES:
                raise damaged()
            size = _bounded(width=_big(data, start + 7, 2), height=_big(data, start + 5, 2))
        if marker in _NEEDED:
            kept.append(data[start:stop])
    raise ImageError(_TOO_MANY_PARTS)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each segment's marker, start and end, found the way decoders find them: past filling and junk."""
    start = 2
    for _ in range(MAX_PARTS):
        fill = data.find(b"\xff", start)
        marker = _NO_FILL.search(data, fill) if fill >= 0 else None
        if marker is None:
            raise damaged()
        length = _big(data, marker.end(), 2)
        if length < 2:
            raise damaged()
        start = marker.end() + length
        yield marker[0][0], marker.start() - 1, start


def _gif(data: bytes) -> ImageFile:
    size = _bounded(_little(data, 6), _little(data, 8))
    flags = _byte(data, 10)
    start = _GIF_SCREEN + (3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0)
    kept = [data[:start]]
    while (kind := _byte(data, start)) != _GIF_FRAME:
        if kind != _GIF_EXTENSION:
            raise damaged()
        stop = start + 2
        while length := _byte(data, stop):
            stop += 1 + length
        stop += 1
        if data[start + 1] == _GIF_CONTROL:
            kept.append(data[start:stop])
        start = stop
    return ImageFile(size, b"".join([*kept, data[start:]]))


def _byte(data: bytes, start: int) -> int:
    if start >= len(data):
        raise damaged()
    return data[start]


def _big(data: bytes | memoryview, start: int, count: int) -> int:
    if start + count > len(data):
        raise damaged()
    return int.from_bytes(data[start : start + count], "big")


def _little(data: bytes, start: int) -> int:
    if start + 2 > len(data):
        raise damaged()
    return int.from_bytes(data[start : start + 2], "little")
