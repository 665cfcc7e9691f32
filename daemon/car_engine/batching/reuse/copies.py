"""Copies of cells outside of the context, in host memory and in files: what it takes to go on from one."""

from typing import NamedTuple

from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_cells import StoredCells
from car_engine.batching.reuse.stored_prefix import StoredPrefix
from car_engine.batching.saved_cells import SavedCells, SavedPrefix


class Copy(NamedTuple):
    """Cells of the first `tokens` tokens of a prefix, and the seconds to move them into a sequence."""

    seconds: float
    tokens: int
    source: SavedPrefix | StoredPrefix


class Copies:
    """Finds the copies of a prefix."""

    def __init__(self, saved: SavedCells, stored: StoredCells, costs: MoveCosts) -> None:
        self._saved = saved
        self._stored = stored
        self._costs = costs

    def of(self, prefix: Prefix) -> list[Copy]:
        """Return the longest copy in host memory, and one in a file if it is longer."""
        costs, copies = self._costs, []
        tokens, saved = self._saved.longest(prefix)
        if saved is not None:
            copies.append(Copy(costs.restore(len(saved.prefix)), tokens, saved))
        more, stored = self._stored.longest(prefix)
        if stored is not None and more > tokens:
            cells = len(stored.prefix)
            copies.append(Copy(costs.read(cells) + costs.restore(cells), more, stored))
        return copies
