"""Images on their way through a chat template: a text stands for each of them, which no client can write."""

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from car_daemon.engine.refusal import Refusal

# A noncharacter of its own, so that it never is the mark of a client's control tokens; digits have no other case.
_EDGE = "\U0001fffe"


class Text(NamedTuple):
    """A piece of the prompt, and whether control tokens count in it."""

    text: str
    parse_special: bool


class Slot(NamedTuple):
    """The place of an image, by its number."""

    image: int


def new_secret() -> str:
    """Return what the markers of one conversation share: 128 random bits as digits."""
    return str(secrets.randbits(128))


def marker(image: int, secret: str) -> str:
    """Return the text that stands for an image."""
    return f"{_EDGE}{secret}{_EDGE}{image}{_EDGE}"


def carry(contents: Sequence[Sequence[str | bytes]], secret: str) -> tuple[list[str], list[bytes]]:
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


def cut(pieces: Iterable[tuple[str, bool]], images: int, secret: str) -> list[Text | Slot]:
    """Return rendered pieces with their markers as slots; raises Refusal where not every image has exactly one."""
    found = [segment for text, parse_special in pieces for segment in _segments(text, parse_special, secret)]
    if sorted(segment.image for segment in found if isinstance(segment, Slot)) != list(range(images)):
        raise Refusal("invalid_params", param="messages")
    return found


def _segments(text: str, parse_special: bool, secret: str) -> Iterator[Text | Slot]:
    # Every other part is a number: what the group in the pattern has found.
    for place, part in enumerate(re.split(f"{_EDGE}{secret}{_EDGE}([0-9]+){_EDGE}", text)):
        if place % 2:
            yield Slot(int(part))
        elif part:
            yield Text(part, parse_special)
