"""The images of a conversation on their way into its prompt: checked, counted and given their places."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from msgspec import structs

from car_daemon.engine.frames import Chat
from car_daemon.engine.image_slots import carry, new_secret
from car_daemon.engine.images import ImageError, Size, check_image, decode_base64
from car_daemon.engine.refusal import Refusal
from car_protocol.conversation import ImagePart, Message


@dataclass(frozen=True, slots=True)
class Carried:
    """A chat whose images are markers in its texts, and for each image its file and what stands for it in a prompt."""

    chat: Chat
    secret: str
    files: list[bytes]
    placeholders: list[list[int]]


def carried(chat: Chat, count: Callable[[Size], int], room: int) -> Carried | None:
    """Take the images out of a chat; None where they take more than `room` positions. Raises Refusal for a bad image.

    `count` tells how many positions an image takes.
    """
    secret = new_secret()
    try:
        texts, files = carry([_parts(message) for message in chat.messages], secret)
        placeholders = _placeholders(files, count, room)
    except ImageError as error:
        raise Refusal("invalid_params", param="messages", why=str(error)) from error
    if placeholders is None:
        return None
    messages = [
        structs.replace(message, content=text) if message.images else message
        for message, text in zip(chat.messages, texts, strict=True)
    ]
    return Carried(structs.replace(chat, messages=messages), secret, files, placeholders)


def _parts(message: Message) -> list[str | bytes]:
    if not isinstance(message.content, list):
        return [message.text]
    return [decode_base64(part.data) if isinstance(part, ImagePart) else part.text for part in message.content]


def _placeholders(files: list[bytes], count: Callable[[Size], int], room: int) -> list[list[int]] | None:
    """Return what stands for each image; None as soon as that is too much: counting thousands takes seconds."""
    placeholders: list[list[int]] = []
    for file in files:
        positions = count(check_image(file))
        room -= positions
        if room < 0:
            return None
        placeholders.append(_placeholder(file, positions))
    return placeholders


def _placeholder(file: bytes, count: int) -> list[int]:
    """Return numbers below 0, which no token has, that are the same for the same image and for hardly any other."""
    seed = int.from_bytes(sha256(file).digest()[:16], "little")
    numbers: list[int] = np.random.default_rng(seed).integers(-(2**31), -1, count).tolist()
    return numbers
