"""Cells in host memory: of parked requests, and of prefixes that were evicted from their sequence."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from car_daemon.engine.batching.prefix import Prefix


@dataclass(frozen=True, slots=True, eq=False)
class SavedPrefix:
    """Cells from position `lowest` on that any prompt with this prefix can reuse."""

    prefix: Prefix
    cells: memoryview
    lowest: int


class SavedCells:
    """At most `limit` bytes in all; parked requests have precedence, and the least recently used prefixes go first.

    `attends_from` returns the lowest position to which the token after a number of cells attends.
    """

    def __init__(self, limit: int, attends_from: Callable[[int], int]) -> None:
        self._limit = limit
        self._attends_from = attends_from
        self.pinned = 0  # Bytes of parked requests.
        self.bytes = 0  # Of parked requests and prefixes.
        self._prefixes: OrderedDict[int, SavedPrefix] = OrderedDict()  # By id, the least recently used first.

    def __repr__(self) -> str:
        return f"<SavedCells bytes={self.bytes}/{self._limit} pinned={self.pinned} prefixes={len(self._prefixes)}>"

    def pin(self, size: int) -> bool:
        """Reserve room for a parked request's cells, dropping prefixes as needed; False if it does not fit."""
        if self.pinned + size > self._limit:
            return False
        self.pinned += size
        self._grow(size)
        return True

    def unpin(self, size: int) -> None:
        """Free the room of a parked request."""
        self.pinned -= size
        self.bytes -= size

    def fits(self, size: int) -> bool:
        """Whether a prefix of this size fits beside the parked requests."""
        return self.pinned + size <= self._limit

    def keep(self, saved: SavedPrefix) -> None:
        """Keep a prefix in place of shorter ones that it contains; drops others where room is short."""
        if not self.fits(len(saved.cells)):
            return
        for number, other in list(self._prefixes.items()):
            if other.prefix.common(saved.prefix) == len(other.prefix) and self._serves(saved, len(other.prefix)):
                self._drop(number)
        self._prefixes[id(saved)] = saved
        self._grow(len(saved.cells))

    def longest(self, prefix: Prefix) -> tuple[int, SavedPrefix | None]:
        """Return the number of tokens that a prompt can reuse at most, and the prefix with them."""
        reusable = [
            (tokens, number)
            for number, saved in self._prefixes.items()
            if (tokens := saved.prefix.common(prefix)) and self._serves(saved, tokens)
        ]
        tokens, number = max(reusable, default=(0, 0))
        return tokens, self._prefixes[number] if tokens else None

    def touch(self, saved: SavedPrefix) -> None:
        """Mark a prefix as used now."""
        if id(saved) in self._prefixes:
            self._prefixes.move_to_end(id(saved))

    def _serves(self, saved: SavedPrefix, tokens: int) -> bool:
        return saved.lowest <= saved.prefix.needed_from(tokens, self._attends_from)

    def _grow(self, size: int) -> None:
        self.bytes += size
        while self.bytes > self._limit:
            self._drop(next(iter(self._prefixes)))

    def _drop(self, number: int) -> None:
        self.bytes -= len(self._prefixes.pop(number).cells)
