"""Sizes of images come from their headers, and only the parts that a decoder needs are kept."""

import base64
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_engine.images import image_file
from car_engine.images.image_file import ImageError, MediaError, Size, decode_base64, read_image
from tests.engine.images.pictures import (
    gif,
    jpeg,
    jpeg_frame,
    jpeg_segment,
    png,
    png_chunk,
    png_header,
    png_rows,
)

Encode = Callable[[int, int], bytes]
FORMATS: dict[str, Encode] = {"png": png, "jpeg": jpeg, "gif": gif}
COMMENT = b"\x21\xfe\5hello\0"
DAMAGED = "the image is damaged or truncated"
formats = pytest.mark.parametrize("encode", FORMATS.values(), ids=FORMATS)


def fault(data: bytes) -> str:
    """Return why an image is refused."""
    with pytest.raises(ImageError) as error:
        read_image(data)
    return str(error.value)


def header_of(encode: Encode, width: int, height: int) -> bytes:
    """Return an image whose header says a size that its data have not."""
    if encode is png:
        return png_header(width, height) + png_rows(b"")
    if encode is jpeg:
        return b"\xff\xd8" + jpeg_frame(width, height) + jpeg_segment(0xDA, b"")
    small = gif(1, 1)
    sides = struct.pack("<HH", width, height)
    return small[:6] + sides + small[10:24] + sides + small[28:]


@formats
@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (40, 30), (17, 300)])
def test_the_size_of_an_image_is_read(encode: Encode, width: int, height: int) -> None:
    assert read_image(encode(width, height)).size == Size(width, height)


@formats
def test_sizes_have_bounds(encode: Encode) -> None:
    long, short = image_file.MAX_SIDE, -(-image_file.MAX_SIDE // image_file.MAX_RATIO)
    assert read_image(header_of(encode, long, short)).size == (long, short)
    assert read_image(header_of(encode, 4000, 4000)).size == (4000, 4000)
    for width, height in [(4001, 4000), (long + 1, 1000), (1000, long + 1), (0, 1), (1, 0), (65535, 65535)]:
        why = f"the image has {width} x {height} pixels: the limits are 8,192 a side and 16,000,000 in all"
        assert fault(header_of(encode, width, height)) == why
    for width, height in [(image_file.MAX_RATIO + 1, 1), (1, image_file.MAX_RATIO + 1), (long, short - 1)]:
        assert (
            fault(header_of(encode, width, height)) == f"the image has {width} x {height} pixels: the limit is 50 to 1"
        )


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG", b"RIFF\0\0\0\0WEBPVP8 ", b"BM" + b"\0" * 60, b"ID3\4", b"\0\0\0\x18ftypmp42", b"8BPS"]
)
def test_other_formats_are_refused(data: bytes) -> None:
    assert fault(data) == "the image is not a PNG, JPEG or GIF"


@formats
def test_a_file_has_a_bound(encode: Encode) -> None:
    assert "too many bytes" in fault(encode(9, 9) + b"\0" * image_file.MAX_BYTES)


@formats
def test_a_header_that_is_cut_off_is_damaged(encode: Encode) -> None:
    whole = encode(4, 4)
    for end in range(12, whole.index(b"IDAT") if encode is png else 19):
        assert fault(whole[:end]) == DAMAGED


@pytest.mark.parametrize("first", [png_chunk(b"IEND", b""), png_chunk(b"IHDR", b""), png_chunk(b"CgBI", bytes(4))])
def test_a_png_begins_with_its_header(first: bytes) -> None:
    assert fault(b"\x89PNG\r\n\x1a\n" + first + png(1, 1)[8:]) == DAMAGED


def test_a_png_of_too_many_chunks_is_refused() -> None:
    many = png_chunk(b"tEXt", b"") * 70_000
    assert fault(png_header(1, 1) + many + png_rows(b"\0\0\0\0")).startswith(
        "the image has too many parts: the limit is 65,536"
    )


def test_what_stands_before_a_jpegs_size_is_skipped() -> None:
    before = jpeg_segment(0xE1, b"\xff\xc0\0\x11\x08\xff\xff\xff\xff") + b"junk\xff\xff\xff\xff\xfe\0\4hi"
    assert read_image(b"\xff\xd8" + before + jpeg(5, 7)[2:]).size == (5, 7)


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC9, 0xCF, 0xD9, 0xDA, 0x01, 0x00])
def test_kinds_of_jpeg_that_no_decoder_takes_are_refused(marker: int) -> None:
    assert "not supported" in fault(b"\xff\xd8" + jpeg_frame(5, 7, marker) + jpeg(5, 7)[2:])


def test_a_jpeg_of_many_scans_is_refused() -> None:
    scans = jpeg_segment(0xDA, b"\1\1\0\0\0\x10") * image_file.MAX_SCANS
    assert fault(jpeg(5, 7) + scans).startswith("the image has too many parts: the limit is 65,536")


@pytest.mark.parametrize("filling", [b"\xff", b"\xff\xfe\0\2", b"\0"])
def test_a_jpeg_of_nothing_but_filling_is_refused(filling: bytes) -> None:
    assert fault(b"\xff\xd8\xff\xfe\0\2" + filling * (image_file.MAX_BYTES // len(filling) - 6))


def test_extensions_before_a_gifs_frame_are_skipped() -> None:
    assert read_image(gif(5, 7, extensions=COMMENT * 3)).size == (5, 7)
    assert fault(gif(5, 7, extensions=b"\x22" + COMMENT)) == DAMAGED


def test_metadata_are_left_out() -> None:
    text, profile = png_chunk(b"tEXt", b"a\0b"), png_chunk(b"iCCP", b"a\0\0")
    assert read_image(png_header(5, 7) + text + png(5, 7)[33:-12] + profile + png(5, 7)[-12:]).data == png(5, 7)
    exif, comment, adobe = jpeg_segment(0xE1, b"Exif"), jpeg_segment(0xFE, b"hello"), jpeg_segment(0xEE, b"Adobe")
    assert (
        read_image(b"\xff\xd8" + exif + adobe + comment + jpeg(5, 7)[2:]).data == b"\xff\xd8" + adobe + jpeg(5, 7)[2:]
    )
    control = b"\x21\xf9\4\1\0\0\0\0"
    assert read_image(gif(5, 7, extensions=COMMENT + control + COMMENT)).data == gif(5, 7, extensions=control)


@settings(max_examples=300)
@given(start=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"GIF87a"]), rest=st.binary())
def test_no_bytes_raise_anything_else(start: bytes, rest: bytes) -> None:
    try:
        size = read_image(start + rest).size
    except ImageError:
        return
    assert 1 <= min(size) <= max(size) <= image_file.MAX_SIDE


@settings(max_examples=300)
@given(
    encode=st.sampled_from([*FORMATS.values()]),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 400),
)
def test_no_change_to_an_image_raises_anything_else(encode: Encode, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(encode(11, 13))
    for place, value in changes:
        data[place % len(data)] = value
    with suppress(ImageError):
        read_image(bytes(data[: max(3, len(data) - cut)]))


@given(data=st.binary())
def test_base64_is_read(data: bytes) -> None:
    assert decode_base64(base64.b64encode(data).decode()) == data


@pytest.mark.parametrize(
    "text", ["a", "ab", "abc", "ab=c", "ab\ncd", "abcd ", "ab-_", "é", "====", "abcd====", "\ud800"]
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(MediaError, match="the image is not valid base64"):
        decode_base64(text)


def test_more_base64_than_an_image_may_have_is_not_read() -> None:
    most = "A" * (-(-image_file.MAX_BYTES // 3) * 4)
    assert len(decode_base64(most)) >= image_file.MAX_BYTES
    with pytest.raises(MediaError, match="too many bytes"):
        decode_base64(most + "AAAA")


@given(text=st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    with suppress(MediaError):
        assert base64.b64encode(decode_base64(text)).decode()[:-2] == text[:-2]
