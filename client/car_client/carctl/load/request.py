"""One request of a load."""

from msgspec import Struct


class Request(Struct, frozen=True):
    """What is asked: a prompt as text or tokens, and how many tokens its answer is to have."""

    number: int
    prompt: str | list[int]
    max_tokens: int
