"""Images and sounds of a question, from files."""

import base64
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from functools import partial
from typing import Literal

from car_client.options import Turn

Part = dict[str, str]
Kind = Literal["image", "audio"]
_FLAGS: dict[str, tuple[Kind, str]] = {"--image": ("image", "a PNG, JPEG or GIF"), "--sound": ("audio", "a WAV or MP3")}
# The daemon's bound for a part; a larger file, or a device without an end, is not read.
MOST_BYTES = 5 * 1024 * 1024


class UnreadableMedia(ValueError):
    """A file that cannot be sent; the message names it and the reason."""


def add_media_arguments(parser: ArgumentParser) -> None:
    """Declare the files of a question, in their order on the command line."""
    for flag, (kind, formats) in _FLAGS.items():
        parser.add_argument(
            flag,
            dest="media",
            action="append",
            default=[],
            metavar="FILE",
            type=partial(_argument, kind),
            help=f"{formats} that comes before the text (repeatable)",
        )


def read_part(kind: Kind, path: str) -> Part:
    """Return a file as a part of a message; raises UnreadableMedia."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableMedia(f"{path}: {(error.strerror or 'unreadable').lower()}") from error
    except ValueError as error:
        raise UnreadableMedia("the name holds a null byte") from error
    if not data:
        raise UnreadableMedia(f"{path}: the file is empty")
    if len(data) > MOST_BYTES:
        raise UnreadableMedia(f"{path}: over the limit of {MOST_BYTES:,} bytes; scale it down or cut it")
    return {"type": kind, "data": base64.b64encode(data).decode()}


def question(text: str, media: Sequence[Part]) -> Turn:
    """Return a user's turn: the text, after its images and sounds."""
    content = [*media, {"type": "text", "text": text}] if media else text
    return Turn(role="user", content=content)


def _argument(kind: Kind, path: str) -> Part:
    """Return a file as a part, for argparse."""
    try:
        return read_part(kind, path)
    except UnreadableMedia as error:
        raise ArgumentTypeError(str(error)) from error
