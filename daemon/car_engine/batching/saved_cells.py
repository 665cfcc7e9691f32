"""Cells in host memory: of parked requests, and of prefixes that were evicted from their sequence."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.kept_prefixes import KeptPrefixes


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
        self.pinned = 0  # Bytes of parked requests.
        self.bytes = 0  # Of parked requests and prefixes.
        self._prefixes: OrderedDict[SavedPrefix, None] = OrderedDict()  # The least recently used first.
        self._found: KeptPrefixes[SavedPrefix] = KeptPrefixes(attends_from)  # The same.

    def __repr__(self) -> str:
        return f"<SavedCells bytes={self.bytes}/{self._limit} pinned={self.pinned} prefixes={len(self._prefixes)}>"

    @property
    def prefixes(self) -> list[SavedPrefix]:
        """The prefixes, the least recently used first."""
        return list(self._prefixes)

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
        for other in self._found.replaced(saved):
            self._drop(other)
        self._prefixes[saved] = None
        self._found.add(saved)
        self._grow(len(saved.cells))

    def longest(self, prefix: Prefix) -> tuple[int, SavedPrefix | None]:
        """Return the number of tokens that a prompt can reuse at most, and the prefix with them."""
        return self._found.longest(prefix)

    def touch(self, saved: SavedPrefix) -> None:
        """Mark a prefix as used now."""
        if saved in self._prefixes:
            self._prefixes.move_to_end(saved)

    def _grow(self, size: int) -> None:
        self.bytes += size
        while self.bytes > self._limit:
            self._drop(next(iter(self._prefixes)))

    def _drop(self, saved: SavedPrefix) -> None:
        del self._prefixes[saved]
        self._found.remove(saved)
        self.bytes -= len(saved.cells)
