"""Cells in host memory: of parked requests, and of prefixes that were evicted from their sequence."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from car_daemon.engine.batching.prefix import Prefix
from car_daemon.engine.batching.reuse.prefix_tree import PrefixTree


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
        self._prefixes: OrderedDict[SavedPrefix, None] = OrderedDict()  # The least recently used first.
        self._tree: PrefixTree[SavedPrefix] = PrefixTree()  # The same.

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
        for other in self._tree.contained(saved.prefix):
            if self._serves(saved, len(other.prefix)):
                self._drop(other)
        self._prefixes[saved] = None
        self._tree.add(saved.prefix, saved)
        self._grow(len(saved.cells))

    def longest(self, prefix: Prefix) -> tuple[int, SavedPrefix | None]:
        """Return the number of tokens that a prompt can reuse at most, and the prefix with them."""
        matches = self._tree.matches(prefix)
        return next(((tokens, saved) for tokens, saved in matches if self._serves(saved, tokens)), (0, None))

    def touch(self, saved: SavedPrefix) -> None:
        """Mark a prefix as used now."""
        if saved in self._prefixes:
            self._prefixes.move_to_end(saved)

    def _serves(self, saved: SavedPrefix, tokens: int) -> bool:
        return saved.lowest <= saved.prefix.needed_from(tokens, self._attends_from)

    def _grow(self, size: int) -> None:
        self.bytes += size
        while self.bytes > self._limit:
            self._drop(next(iter(self._prefixes)))

    def _drop(self, saved: SavedPrefix) -> None:
        del self._prefixes[saved]
        self._tree.remove(saved.prefix, saved)
        self.bytes -= len(saved.cells)
