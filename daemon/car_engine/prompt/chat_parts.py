"""Digests of the parts of a conversation, by which two prompts are compared without their texts."""

from hashlib import blake2b

import msgspec

from car_base.ipc.frames import Chat
from car_base.ipc.types import PART_BYTES

_NOTHING = bytes(PART_BYTES)


def digests(chat: Chat | None) -> bytes:
    """Return the digest of the tools, zeros without any, then of each message; empty for a text or tokens."""
    if chat is None:
        return b""
    tools = _digest(chat.tools) if chat.tools else _NOTHING
    return b"".join([tools, *map(_digest, chat.messages)])


def _digest(part: object) -> bytes:
    return blake2b(msgspec.msgpack.encode(part), digest_size=PART_BYTES).digest()
