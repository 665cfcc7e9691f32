"""Image files into pixels by Pillow, an optional dependency: importing this module raises ImportError without it."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from car_engine.images.image_file import MAX_PIXELS, Size, damaged, read_image

# 8-bit RGB of shape (height, width, 3).
Pixels = NDArray[np.uint8]
_FORMATS = ("PNG", "JPEG", "GIF")
_GREY_OF_16_BITS = "I;16"
# Converted at once, in about 1 ms: Pillow decodes without the GIL, but converts and copies with it.
_STRIP_PIXELS = 1 << 18

# Sizes are checked by the headers already; this is Pillow's own bound, one for the process.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS


def decode(data: bytes) -> Pixels:
    """Return the pixels of an image, of an animation the first frame; raises ImageError.

    Transparency is dropped (transparent pixels of a GIF are black), an orientation in the metadata is not applied.
    """
    file = read_image(data)
    try:
        with Image.open(BytesIO(file.data), formats=_FORMATS) as image:
            return _pixels(image, file.size)
    except Exception as error:
        raise damaged() from error


def _pixels(image: Image.Image, size: Size) -> Pixels:
    if image.size != size:
        # Before a decoder reserves memory for the other size.
        raise damaged()
    transparent = image.format == "GIF" and "transparency" in image.info
    pixels: Pixels = np.empty((size.height, size.width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // size.width)
    for top in range(0, size.height, rows):
        bottom = min(size.height, top + rows)
        pixels[top:bottom] = _rgb(image.crop((0, top, size.width, bottom)), transparent=transparent)
    return pixels


def _rgb(strip: Image.Image, *, transparent: bool) -> Pixels:
    if strip.mode == "RGB":
        return np.asarray(strip)
    if strip.mode == _GREY_OF_16_BITS:
        # Pillow would clip to 8 bits, not scale.
        return np.repeat((np.asarray(strip) >> 8).astype(np.uint8)[:, :, np.newaxis], 3, axis=2)
    if transparent:
        visible = np.array(strip.convert("RGBA"))
        visible[visible[:, :, 3] == 0] = 0
        return visible[:, :, :3]
    return np.asarray(strip.convert("RGB"))
