"""The images of a conversation on their way into its prompt.

In the texts that the chat template renders a marker stands for each image, which no client can write; in the prompt's
tokens, placeholders: numbers below 0 that follow from the image's bytes.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from msgspec import structs

from car_daemon.engine.images.image_file import ImageError, Size, decode_base64, read_image
from car_daemon.ipc.frames import Chat
from car_daemon.ipc.refusal import Refusal
from car_protocol.conversation import ImagePart, Message
from car_protocol.limits import MAX_IMAGE_PIXELS, MAX_IMAGES

# A noncharacter that SpecialTokenEscaper does not use; digits have no other case.
_EDGE = "\U0001fffe"


class Text(NamedTuple):
    """A piece of the prompt, and whether control tokens count in it."""

    text: str
    parse_special: bool


class Slot(NamedTuple):
    """The place of an image, by its number."""

    image: int


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A chat whose images are markers in its texts, and for each image its file and its placeholders."""

    chat: Chat
    secret: str
    files: list[bytes]
    placeholders: list[list[int]]


def take_images(chat: Chat, count: Callable[[Size], int], room: int) -> ImagePrompt | None:
    """Take the images out of a chat; None where they take more than `room` positions. Raises Refusal for a bad image.

    `count` returns the positions of an image.
    """
    secret = new_secret()
    try:
        _check_number(sum(len(message.images) for message in chat.messages))
        texts, files = with_markers([_parts(message) for message in chat.messages], secret)
        placeholders: list[list[int]] = []
        sizes = [read_image(file).size for file in files]
        _check_pixels(sum(size.width * size.height for size in sizes))
        for file, size in zip(files, sizes, strict=True):
            positions = count(size)
            room -= positions
            if room < 0:
                # Counting thousands would take seconds.
                return None
            # Numbers below 0, which no token has: equal for equal images, different for nearly all others.
            seed = int.from_bytes(sha256(file).digest()[:16], "little")
            placeholders.append(np.random.default_rng(seed).integers(-(2**31), -1, positions).tolist())
    except ImageError as error:
        raise Refusal("invalid_params", param="messages", why=str(error)) from error
    messages = [
        structs.replace(message, content=text) if message.images else message
        for message, text in zip(chat.messages, texts, strict=True)
    ]
    return ImagePrompt(structs.replace(chat, messages=messages), secret, files, placeholders)


def _check_number(images: int) -> None:
    if images > MAX_IMAGES:
        raise ImageError(f"the request has {images:,} images, max_images is {MAX_IMAGES:,}: send fewer")


def _check_pixels(pixels: int) -> None:
    if pixels > MAX_IMAGE_PIXELS:
        message = f"the images of the request have {pixels:,} pixels, max_image_pixels is {MAX_IMAGE_PIXELS:,}"
        raise ImageError(f"{message}: send fewer or smaller ones")


def new_secret() -> str:
    """Return the part that the markers of one conversation share: 128 random bits as digits."""
    return str(secrets.randbits(128))


def marker(image: int, secret: str) -> str:
    """Return the text that stands for an image."""
    return f"{_EDGE}{secret}{_EDGE}{image}{_EDGE}"


def with_markers(contents: Sequence[Sequence[str | bytes]], secret: str) -> tuple[list[str], list[bytes]]:
    """Return each message's parts as one text, with markers for images, and the images by their numbers."""
    texts: list[str] = []
    images: list[bytes] = []
    for parts in contents:
        text = ""
        for part in parts:
            if isinstance(part, bytes):
                text += marker(len(images), secret)
                images.append(part)
            else:
                text += part
        texts.append(text)
    return texts, images


def split_at_markers(pieces: Iterable[tuple[str, bool]], images: int, secret: str) -> list[Text | Slot]:
    """Return rendered pieces with slots for their markers; raises Refusal unless every image has exactly one."""
    found: list[Text | Slot] = []
    for text, parse_special in pieces:
        # Every other part is a number: the match of the pattern's group.
        for place, part in enumerate(re.split(f"{_EDGE}{secret}{_EDGE}([0-9]+){_EDGE}", text)):
            if place % 2:
                found.append(Slot(int(part)))
            elif part:
                found.append(Text(part, parse_special))
    if sorted(segment.image for segment in found if isinstance(segment, Slot)) != list(range(images)):
        raise Refusal("invalid_params", param="messages")
    return found


def _parts(message: Message) -> list[str | bytes]:
    if not isinstance(message.content, list):
        return [message.text]
    return [decode_base64(part.data) if isinstance(part, ImagePart) else part.text for part in message.content]
