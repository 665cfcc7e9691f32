"""Tokens and vectors as bytes in frames: a frame takes no time by their number, until they are needed."""

from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4
_NUMBER_BYTES = 8


def packed_tokens(tokens: Iterable[int]) -> bytes:
    """Return tokens as int32 values."""
    return array("i", tokens).tobytes()


def tokens_of(packed: bytes) -> list[int]:
    """Return packed tokens; bytes after the last whole one count for nothing."""
    return memoryview(packed)[: len(packed) // TOKEN_BYTES * TOKEN_BYTES].cast("i").tolist()


def packed_vector(vector: Iterable[float]) -> bytes:
    """Return a vector as 64-bit floats."""
    return array("d", vector).tobytes()


def vector_of(packed: bytes) -> list[float]:
    """Return a packed vector; bytes after the last whole number count for nothing."""
    numbers = array("d")
    numbers.frombytes(memoryview(packed)[: len(packed) // _NUMBER_BYTES * _NUMBER_BYTES])
    return numbers.tolist()
