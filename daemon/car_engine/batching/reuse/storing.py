"""Which idle cells are stored in files: the ones that would take longest to compute again."""

from typing import NamedTuple

from car_engine.batching.cells import CellContext, CellMover
from car_engine.batching.prefix import Prefix, SavedPrefix
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_cells import CellStore
from car_engine.batching.reuse.stored_prefix import in_files
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Sequence, SequenceTable

# Fewer tokens are computed at about the time in which a file is found and read.
_LEAST_TOKENS = 256
# A conversation is written again once it has grown by this part of its length, not after each answer.
_GROWTH = 0.25


class Storable(NamedTuple):
    """Cells that are worth a file: those of an idle sequence, or those in host memory."""

    spared_s: float  # to compute what no file has yet
    source: Sequence | SavedPrefix


class Storing:
    """Picks idle cells and stores them, each of them once at most."""

    def __init__(
        self,
        context: CellContext,
        table: SequenceTable,
        saved: SavedCells,
        cells: CellMover,
        costs: MoveCosts,
        index: Index,
        store: CellStore | None,
    ) -> None:
        self._context = context
        self._table = table
        self._saved = saved
        self._cells = cells
        self._costs = costs
        self._index = index
        self._store = store
        self._tried: set[Prefix] = set()  # that exist still, so that files in too little room do not replace each other

    @property
    def ready(self) -> bool:
        """Whether cells can be written now."""
        return self._store is not None and not self._store.writing

    def store_next(self, most_s: float) -> bool:
        """Begin to write the cells that are worth most; False if there are none whose copy takes at most this long.

        One copy is in memory at a time, because the next one follows once this one is written.
        """
        storable = max(self._storable(most_s), key=lambda each: each.spared_s, default=None)
        if storable is None or self._store is None:
            return False
        source = storable.source
        assert source.prefix is not None
        self._tried.add(source.prefix)
        copy = source if isinstance(source, SavedPrefix) else self._cells.copied(source)
        named = in_files(copy.prefix)
        assert named is not None
        self._store.write(copy, named)
        return True

    def _storable(self, most_s: float) -> list[Storable]:
        idle = [each for each in self._table.idle if each.prefix is not None]
        saved = self._saved.prefixes
        self._tried &= {each.prefix for each in idle if each.prefix is not None} | {each.prefix for each in saved}
        whole = [each for each in saved if each.count == len(each.prefix) and self._fits(each.size)]
        found = [self._spared(each, each.prefix) for each in whole]
        found += [self._spared(each, each.prefix) for each in idle if self._copyable(each, most_s)]
        return [each for each in found if each is not None]

    def _copyable(self, sequence: Sequence, most_s: float) -> bool:
        return self._costs.save(sequence.cells) <= most_s and self._fits(self._context.saved_size(sequence.number))

    def _fits(self, size: int) -> bool:
        return self._store is not None and self._store.fits(size)

    def _spared(self, source: Sequence | SavedPrefix, prefix: Prefix | None) -> Storable | None:
        if prefix is None or prefix in self._tried or in_files(prefix) is None:
            return None
        cells, costs = len(prefix), self._costs
        there = max((mark.tokens for mark in self._index.files(prefix)), default=0)
        if cells - there < max(_LEAST_TOKENS, _GROWTH * cells):
            return None
        spared_s = costs.compute(there, cells)
        worth = spared_s > costs.read(cells) + costs.restore(cells)
        return Storable(spared_s, source) if worth else None
