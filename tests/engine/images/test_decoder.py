"""Pixels of images: equal to the encoded ones, whatever the format, and no harm from damaged files."""

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from car_engine.images import image_file
from car_engine.images.decoder import decode
from car_engine.images.image_file import ImageError
from tests.engine.images.pictures import gif, jpeg, parts_of, png, png_chunk, png_header, png_rows
from tests.pace import cpu_time

Pixels = NDArray[np.uint8]
RANDOM = np.random.default_rng(1)
NOISE = RANDOM.integers(0, 256, (30, 40, 4), dtype=np.uint8)
SMOOTH = np.stack([np.add.outer(np.arange(0, 120, 4), np.arange(0, 120, 3))] * 3, axis=2).astype(np.uint8)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """Return an image as a file."""
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def grey(pixels: Pixels) -> Pixels:
    """Return one channel as three."""
    return np.repeat(pixels[:, :, np.newaxis], 3, axis=2)


def test_png_of_every_kind_is_decoded_exactly() -> None:
    rgba = Image.fromarray(NOISE)
    rgb = Image.fromarray(NOISE[:, :, :3])
    few = rgb.quantize(16)
    shades = Image.fromarray(NOISE[:, :, 0])
    bits = rgb.convert("1")
    assert np.array_equal(decode(encoded(rgb, "PNG")), NOISE[:, :, :3])
    assert np.array_equal(decode(encoded(rgba, "PNG")), NOISE[:, :, :3]), "transparency is dropped"
    assert np.array_equal(decode(encoded(shades, "PNG")), grey(NOISE[:, :, 0]))
    assert np.array_equal(decode(encoded(rgba.convert("LA"), "PNG")), np.asarray(rgba.convert("L").convert("RGB")))
    assert np.array_equal(decode(encoded(few, "PNG", transparency=3)), np.asarray(few.convert("RGB")))
    assert np.array_equal(decode(encoded(bits, "PNG")), np.asarray(bits.convert("RGB")))


def test_grey_of_16_bits_is_scaled() -> None:
    deep = RANDOM.integers(0, 65536, (30, 40), dtype=np.uint16)
    assert np.array_equal(decode(encoded(Image.fromarray(deep), "PNG")), grey((deep >> 8).astype(np.uint8)))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 2}])
def test_jpeg_is_decoded_closely(options: dict[str, object]) -> None:
    decoded = decode(encoded(Image.fromarray(SMOOTH), "JPEG", quality=95, **options))
    assert np.abs(decoded.astype(int) - SMOOTH).max() <= 8


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpeg_of_other_colour_spaces_becomes_rgb(mode: str) -> None:
    image = Image.fromarray(SMOOTH).convert(mode)
    decoded = decode(encoded(image, "JPEG", quality=95))
    assert np.abs(decoded.astype(int) - np.asarray(image.convert("RGB")).astype(int)).max() <= 8


def test_the_orientation_in_metadata_is_not_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(Image.fromarray(SMOOTH), "JPEG", exif=exif)).shape == SMOOTH.shape


def test_the_first_frame_of_an_animation_is_decoded() -> None:
    frames = [Image.new("RGB", (40, 30), color) for color in ("red", "blue")]
    for format in ("GIF", "PNG"):
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
        assert np.array_equal(decode(data), np.asarray(frames[0]))


def test_transparent_pixels_of_a_gif_are_black() -> None:
    few = Image.fromarray(NOISE[:, :, :3]).quantize(32)
    wanted = np.array(few.convert("RGB"))
    wanted[np.asarray(few) == 5] = 0
    assert np.array_equal(decode(encoded(few, "GIF", transparency=5, optimize=False)), wanted)


def test_the_rows_of_a_png_may_be_cut_anywhere() -> None:
    whole = png(40, 30)
    start = whole.index(b"IDAT") + 4
    rows = whole[start : whole.index(b"IEND") - 8]
    for size in (1, 7, len(rows)):
        chunks = b"".join(png_chunk(b"IDAT", part) for part in parts_of(rows, size))
        assert np.array_equal(decode(png_header(40, 30) + chunks + png_chunk(b"IEND", b"")), decode(whole))


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


FAULTY = {
    "rows": png_header(4, 4) + png_rows(b"\0\0"),
    "no rows": png_header(1, 1) + png_chunk(b"IEND", b""),
    "zlib": png_header(1, 1) + png_chunk(b"IDAT", b"no zlib") + png_chunk(b"IEND", b""),
    "filter": png_header(1, 1) + png_rows(b"\x09\0\0\0"),
    "depth": png_header(4, 4, depth=5) + png_rows(bytes(64)),
    "other size": png_header(1, 1) + png_header(9, 9)[8:] + png_rows(bytes(300)),
    "truncated png": truncated(encoded(Image.fromarray(NOISE), "PNG")),
    "jpeg of 12 bits": jpeg(40, 30).replace(b"\x08\0\x1e", b"\x0c\0\x1e"),
    "truncated jpeg": truncated(encoded(Image.fromarray(NOISE[:, :, :3]), "JPEG")),
    "gif": gif(4, 4)[:40] + struct.pack("<H", 0xFFFF) * 20,
    "truncated gif": truncated(encoded(Image.fromarray(NOISE[:, :, :3]), "GIF")),
    "frame outside": gif(4, 4).replace(struct.pack("<HHHH", 0, 0, 4, 4), struct.pack("<HHHH", 9, 9, 4, 4)),
}


@pytest.mark.parametrize("data", FAULTY.values(), ids=FAULTY)
def test_a_damaged_or_truncated_image_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match="the image is damaged or truncated"):
        decode(data)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "rows that inflate to a thousand times their size": lambda: (
        png_header(1, 1) + png_chunk(b"IDAT", zlib.compress(bytes(1 << 26))) + png_chunk(b"IEND", b"")
    ),
    "colour profiles": lambda: (
        png_header(1, 1) + png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 20))) * 4000 + png_rows(b"\0\0\0\0")
    ),
    "chunks": lambda: png_header(1, 1) + png_chunk(b"IDAT", b"") * (image_file.MAX_PARTS - 9) + png_rows(b"\0\0\0\0"),
}


@pytest.mark.parametrize("build", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_takes_no_time(build: Callable[[], bytes]) -> None:
    data = build()
    with cpu_time() as spent, suppress(ImageError):
        decode(data)
    assert spent.seconds < 2


@settings(max_examples=300)
@given(
    whole=st.sampled_from(
        [
            encoded(Image.fromarray(NOISE), "PNG"),
            encoded(Image.fromarray(SMOOTH), "JPEG"),
            encoded(Image.fromarray(SMOOTH), "JPEG", progressive=True),
            encoded(Image.fromarray(SMOOTH), "GIF"),
        ]
    ),
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 400),
)
def test_no_change_to_an_image_raises_anything_else(whole: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(whole)
    for place, value in changes:
        data[place % len(data)] = value
    with suppress(ImageError):
        decode(bytes(data[: max(3, len(data) - cut)]))
