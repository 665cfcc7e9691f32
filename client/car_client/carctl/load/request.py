"""One request of a load."""

from msgspec import Struct


class Request(Struct, frozen=True):
    """A prompt as text or tokens, and the length of its answer in tokens."""

    number: int
    prompt: str | list[int]
    max_tokens: int
