"""Cells of sequences in host memory: those of parked requests, and prefixes that had to leave their sequence."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from car_daemon.engine.batching.prefix import Prefix


@dataclass(frozen=True, slots=True, eq=False)
class SavedPrefix:
    """Cells that begin any prompt which begins with these tokens, from the position `lowest` on."""

    prefix: Prefix
    cells: memoryview
    lowest: int


class SavedCells:
    """At most `limit` bytes together; parked requests come first, and prefixes used longest ago go first.

    `needs_from` tells the lowest position that the token after so many cells looks at.
    """

    def __init__(self, limit: int, needs_from: Callable[[int], int]) -> None:
        self._limit = limit
        self._needs_from = needs_from
        # Mutable state: bytes of parked requests and of everything, and the prefixes, the one used last at the end.
        self.pinned = 0
        self.bytes = 0
        self._prefixes: OrderedDict[int, SavedPrefix] = OrderedDict()

    def pin(self, size: int) -> bool:
        """Reserve room for a parked request's cells, which prefixes have to make."""
        if self.pinned + size > self._limit:
            return False
        self.pinned += size
        self._grow(size)
        return True

    def unpin(self, size: int) -> None:
        """Give the room of a parked request back."""
        self.pinned -= size
        self.bytes -= size

    def fits(self, size: int) -> bool:
        """Whether a prefix of so many bytes may be kept, now that requests are parked."""
        return self.pinned + size <= self._limit

    def keep(self, saved: SavedPrefix) -> None:
        """Keep a prefix, in place of those that it begins like; drops others where room is short."""
        if not self.fits(len(saved.cells)):
            return
        for number, other in list(self._prefixes.items()):
            if other.prefix.shared(saved.prefix) == len(other.prefix) and self._serves(saved, len(other.prefix)):
                self._drop(number)
        self._prefixes[id(saved)] = saved
        self._grow(len(saved.cells))

    def longest(self, prefix: Prefix) -> tuple[int, SavedPrefix | None]:
        """Return the prefix that spares a prompt the most tokens, and how many."""
        shared = [
            (tokens, number)
            for number, saved in self._prefixes.items()
            if (tokens := saved.prefix.shared(prefix)) and self._serves(saved, tokens)
        ]
        tokens, number = max(shared, default=(0, 0))
        return tokens, self._prefixes[number] if tokens else None

    def touch(self, saved: SavedPrefix) -> None:
        """Note that a prefix was of use."""
        if id(saved) in self._prefixes:
            self._prefixes.move_to_end(id(saved))

    def _serves(self, saved: SavedPrefix, tokens: int) -> bool:
        return saved.lowest <= self._needs_from(tokens)

    def _grow(self, size: int) -> None:
        self.bytes += size
        while self.bytes > self._limit:
            self._drop(next(iter(self._prefixes)))

    def _drop(self, number: int) -> None:
        self.bytes -= len(self._prefixes.pop(number).cells)
