"""The images and sounds of a conversation on their way into its prompt.

In the texts that the chat template renders, a marker that no client can write stands for each image or sound. In the
prompt's tokens placeholders do: numbers below 0 that follow from its bytes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from msgspec import structs

from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_engine.images.audio_file import check_seconds, read_audio
from car_engine.images.image_file import ImageError, MediaError, Size, decode_base64, read_image
from car_engine.prompt.special_token_escaper import new_secret
from car_protocol.conversation import AudioPart, ImagePart, Message, TextPart
from car_protocol.limits import MAX_IMAGE_PIXELS, MAX_IMAGES

# A noncharacter that SpecialTokenEscaper does not use.
_EDGE = "\U0001fffe"


class PromptText(NamedTuple):
    """A piece of the prompt, and whether control tokens count in it."""

    text: str
    parse_special: bool


class Slot(NamedTuple):
    """The place of an image, by its number."""

    image: int


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A chat whose images and sounds are markers in its texts; file and placeholders of each, and if it is audio."""

    chat: Chat
    secret: str
    files: list[bytes]
    placeholders: list[list[int]]
    audio: list[bool]

    @property
    def marker_bytes(self) -> int:
        """The size of all markers, each written once."""
        return sum(len(marker(image, self.secret).encode()) for image in range(len(self.files)))


class Counts(NamedTuple):
    """The positions of an image by its size, and of a sound by its seconds; None if the model takes none."""

    image: Callable[[Size], int] | None = None
    audio: Callable[[int], int] | None = None


def take_images(chat: Chat, counts: Counts, room: int) -> ImagePrompt | None:
    """Take images and sounds out of a chat; None if they take more than `room` positions.

    Raises Refusal for bad files. The chat has only parts that `counts` has a function for.
    """
    secret = new_secret()
    media = [isinstance(part, AudioPart) for message in chat.messages for part in message.media]
    try:
        _check_number(len(media))
        texts, files = with_markers([_parts(message) for message in chat.messages], secret)
        placeholders: list[list[int]] = []
        for file, measured in zip(files, _measured(files, media, counts), strict=True):
            positions = measured()
            room -= positions
            if room < 0:
                # Counting thousands would take seconds.
                return None
            # Numbers below 0, which no token has: equal for equal images, different for nearly all others.
            seed = int.from_bytes(sha256(file).digest()[:16], "little")
            placeholders.append(np.random.default_rng(seed).integers(-(2**31), -1, positions).tolist())
    except MediaError as error:
        raise Refusal("invalid_params", param="messages", why=str(error)) from error
    messages = [
        structs.replace(message, content=text) if message.media else message
        for message, text in zip(chat.messages, texts, strict=True)
    ]
    return ImagePrompt(structs.replace(chat, messages=messages), secret, files, placeholders, media)


def _measured(files: Sequence[bytes], media: Sequence[bool], counts: Counts) -> list[Callable[[], int]]:
    """Return for each file the function that counts its positions; raises MediaError once all are measured."""
    counted: list[Callable[[], int]] = []
    pixels = seconds = 0
    for file, audio in zip(files, media, strict=True):
        if audio and counts.audio is not None:
            sound = read_audio(file)
            seconds += sound.seconds
            counted.append(partial(counts.audio, sound.seconds))
        elif counts.image is not None:
            size = read_image(file).size
            pixels += size.width * size.height
            counted.append(partial(counts.image, size))
    _check_pixels(pixels)
    check_seconds(seconds)
    return counted


def _check_number(media: int) -> None:
    if media > MAX_IMAGES:
        raise ImageError(f"the request has {media:,} images and sounds, max_images is {MAX_IMAGES:,}: send fewer")


def _check_pixels(pixels: int) -> None:
    if pixels > MAX_IMAGE_PIXELS:
        message = f"the images of the request have {pixels:,} pixels, max_image_pixels is {MAX_IMAGE_PIXELS:,}"
        raise ImageError(f"{message}: send fewer or smaller ones")


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


def split_at_markers(pieces: Iterable[tuple[str, bool]], images: int, secret: str) -> list[PromptText | Slot]:
    """Return rendered pieces with slots for their markers; raises Refusal unless every image has exactly one."""
    found = list(slots_in(pieces, secret))
    if sorted(segment.image for segment in found if isinstance(segment, Slot)) != list(range(images)):
        raise Refusal("invalid_params", param="messages", why="the chat template does not show each image once")
    return found


def slots_in(pieces: Iterable[tuple[str, bool]], secret: str) -> Iterator[PromptText | Slot]:
    """Yield pieces with slots for the markers in them."""
    for text, parse_special in pieces:
        # Every other part is a number: the match of the pattern's group.
        for place, part in enumerate(re.split(f"{_EDGE}{secret}{_EDGE}([0-9]+){_EDGE}", text)):
            if place % 2:
                yield Slot(int(part))
            elif part:
                yield PromptText(part, parse_special)


def _parts(message: Message) -> list[str | bytes]:
    if not isinstance(message.content, list):
        return [message.text]
    return [part.text if isinstance(part, TextPart) else _file(part) for part in message.content]


def _file(part: ImagePart | AudioPart) -> bytes:
    return decode_base64(part.data, "audio" if isinstance(part, AudioPart) else "image")
