"""Texts in pieces, for parsers that must not care where they are cut."""

from itertools import pairwise
from typing import AnyStr

from hypothesis import strategies as st

PLACES = st.lists(st.integers(0, 1000), max_size=12)


def cut(text: AnyStr, places: list[int]) -> list[AnyStr]:
    """Cut a text or bytes at some places."""
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


def every(text: AnyStr, length: int) -> list[AnyStr]:
    """Cut a text or bytes into pieces of one length."""
    return [text[begin : begin + length] for begin in range(0, len(text), length)]
