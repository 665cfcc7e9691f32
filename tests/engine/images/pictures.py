"""Small pictures of one colour, written by hand in each format."""

import struct
import zlib

GREY = (128, 128, 128)
Color = tuple[int, int, int]


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return one chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_header(width: int, height: int, *, depth: int = 8, kind: int = 2) -> bytes:
    """Return a PNG up to the end of its header; kind 2 is RGB, 6 is RGBA."""
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))


def png_rows(rows: bytes) -> bytes:
    """Return a PNG from the end of its header on."""
    return png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def png(width: int, height: int, color: Color = GREY) -> bytes:
    """Return a PNG."""
    return png_header(width, height) + png_rows((b"\0" + bytes(color) * width) * height)


def jpeg_segment(marker: int, content: bytes) -> bytes:
    """Return one segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg_frame(width: int, height: int, marker: int = 0xC0) -> bytes:
    """Return the segment with a JPEG's size; marker 0xC0 is baseline."""
    return jpeg_segment(marker, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")


def jpeg(width: int, height: int) -> bytes:
    """Return a grey JPEG: each block of 8 x 8 is two codes of one bit, no change and the end of the block."""
    one_code = b"\1" + b"\0" * 15 + b"\0"
    tables = jpeg_segment(0xC4, b"\0" + one_code) + jpeg_segment(0xC4, b"\x10" + one_code)
    blocks = -(-width // 8) * -(-height // 8)
    scan = jpeg_segment(0xDA, b"\1\1\0\0\x3f\0") + b"\0" * -(-blocks // 4)
    return (
        b"\xff\xd8" + jpeg_segment(0xDB, b"\0" + b"\1" * 64) + jpeg_frame(width, height) + tables + scan + b"\xff\xd9"
    )


def gif(width: int, height: int, color: Color = GREY, extensions: bytes = b"") -> bytes:
    """Return a GIF; codes of eight bits stay so, as the table is cleared (128) before it grows."""
    codes = b"".join(b"\x80" + b"\0" * min(126, width * height - start) for start in range(0, width * height, 126))
    data = b"".join(bytes([len(part)]) + part for part in parts_of(codes + b"\x81", 255))
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(color) + b"\0\0\0"
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0)
    return b"GIF89a" + screen + extensions + frame + b"\7" + data + b"\0;"


def parts_of(data: bytes, size: int) -> list[bytes]:
    """Cut bytes into parts of one size."""
    return [data[start : start + size] for start in range(0, len(data), size)]
