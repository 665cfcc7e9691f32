"""Cache of encoded images, for the next request with the same image."""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CACHE_BYTES = 64 * 1024 * 1024


class TokensPiece(NamedTuple):
    """Tokens that the model has around its images."""

    tokens: list[int]


class ImagePiece(NamedTuple):
    """Rows of shape (positions, width of the model's input embedding); read-only because requests share them."""

    rows: NDArray[np.float32]


Piece = TokensPiece | ImagePiece
Key = tuple[int, bytes]


class PieceCache:
    """The images encoded last, by their owner's uid and their file's digest; `limit` bounds the bytes of their rows."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._pieces: OrderedDict[Key, list[Piece]] = OrderedDict()  # least recently used first
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<PieceCache images={len(self._pieces)} bytes={self._bytes}>"

    def get(self, key: Key) -> list[Piece] | None:
        """Return an image's pieces, None if they are not cached."""
        if key in self._pieces:
            self._pieces.move_to_end(key)
        return self._pieces.get(key)

    def put(self, key: Key, pieces: list[Piece]) -> None:
        """Cache an image that is not cached yet, unless it exceeds the limit alone; evict the least recently used."""
        size = _size(pieces)
        if size > self._limit:
            return
        self._pieces[key] = pieces
        self._bytes += size
        while self._bytes > self._limit:
            _, evicted = self._pieces.popitem(last=False)
            self._bytes -= _size(evicted)


def _size(pieces: list[Piece]) -> int:
    return sum(piece.rows.nbytes for piece in pieces if isinstance(piece, ImagePiece))
