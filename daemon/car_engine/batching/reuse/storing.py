"""Which idle cells are stored in files: the cells that would take longest to compute again."""

from typing import NamedTuple

from car_engine.batching.cells import CellMover
from car_engine.batching.context import Context
from car_engine.batching.prefix import WORTH_TOKENS, Prefix, SavedPrefix
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_cells import CellStore
from car_engine.batching.reuse.stored_prefix import Contents, in_files
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Sequence, SequenceTable

# A promise: cells of up to so many bytes are written after each answer, so that a daemon that is killed loses no turn.
# Their checkpoints may take as much again. Disks of 1 TB commonly endure 80 GB a day for years: 2,500 such writes.
_EACH_ANSWER_BYTES = 16 * 1024 * 1024
# A larger conversation is written again once it has grown by this part of its length.
_GROWTH = 0.25


class Storable(NamedTuple):
    """Cells that are worth a file, of an idle sequence or in host memory."""

    spared_s: float  # to compute what no file has yet
    source: Sequence | SavedPrefix


class Storing:
    """Picks idle cells and stores each once at most."""

    def __init__(
        self,
        context: Context,
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

    def store_next(self, most_s: float, *, ending: bool = False) -> bool:
        """Begin to write the cells that are worth most; False if there are none whose copy takes at most this long.

        One copy is in memory at a time, because the next one follows once this one is written. While the engine is
        `ending`, large conversations are written that grew a little, too.
        """
        storable = max(self._storable(most_s, ending=ending), key=lambda each: each.spared_s, default=None)
        if storable is None or self._store is None:
            return False
        source = storable.source
        assert source.prefix is not None
        self._tried.add(source.prefix)
        copy = source if isinstance(source, SavedPrefix) else self._cells.copied(source)
        named = in_files(copy.prefix)
        assert named is not None
        self._store.write(Contents(copy.cells, self._states(copy)), named)
        return True

    def read_ahead(self) -> bool:
        """Begin to read a piece of what earlier engines stored; False if none is left, or memory is short."""
        return self._store is not None and self._saved.fits(0) and self._store.read_ahead()

    def _storable(self, most_s: float, *, ending: bool) -> list[Storable]:
        idle = [each for each in self._table.idle if each.prefix is not None]
        saved = self._saved.prefixes
        self._tried &= {each.prefix for each in idle if each.prefix is not None} | {each.prefix for each in saved}
        whole = [each for each in saved if each.count == len(each.prefix) and self._fits(each.size)]
        sized: list[tuple[Sequence | SavedPrefix, int]] = [(each, each.size) for each in whole]
        sized += [(each, self._context.saved_size(each.number)) for each in idle if self._copyable(each, most_s)]
        found = [self._spared(each, at_once=ending or size <= _EACH_ANSWER_BYTES) for each, size in sized]
        return [each for each in found if each is not None]

    def _states(self, saved: SavedPrefix) -> dict[int, memoryview]:
        """Return the states to store beside cells, by the tokens before them.

        They are the last at which prompts part, the very last, from which an answer is written again, and others far
        from each other that take no more room than the cells.
        """
        left = {len(each.prefix): each.state for each in self._index.checkpoints(saved.prefix)}
        left.pop(len(saved.prefix), None)
        parting = max((place for place in self._index.partings(saved.prefix) if place in left), default=0)
        always, room = {parting, max(left, default=0)}, saved.size
        states = dict[int, memoryview]()
        apart = {place: place for place in left}  # from what is stored, and from the beginning
        while left:
            place = max(left, key=lambda each: (each in always, apart[each]))
            state = left.pop(place)
            room -= len(state)
            if (place in always or room >= 0) and self._fits(2 * saved.size - room):
                states[place] = state
                apart = {each: min(apart[each], abs(place - each)) for each in left}
            else:
                room += len(state)
        return dict(sorted(states.items()))

    def _copyable(self, sequence: Sequence, most_s: float) -> bool:
        return self._costs.save(sequence.cells) <= most_s and self._fits(self._context.saved_size(sequence.number))

    def _fits(self, size: int) -> bool:
        return self._store is not None and self._store.fits(size)

    def _spared(self, source: Sequence | SavedPrefix, *, at_once: bool) -> Storable | None:
        prefix = source.prefix
        if prefix is None or prefix in self._tried or in_files(prefix) is None:
            return None
        cells, costs = len(prefix), self._costs
        there = max((mark.tokens for mark in self._index.files(prefix)), default=0)
        if cells - there < (WORTH_TOKENS if at_once else _GROWTH * cells):
            return None
        spared_s = costs.compute(there, cells)
        # A file with the first of them would be read otherwise.
        worth = spared_s > self._regain(cells) - (self._regain(there) if there else 0.0)
        return Storable(spared_s, source) if worth else None

    def _regain(self, cells: int) -> float:
        """Return the seconds to have cells again that a file has."""
        return self._costs.read(cells) + self._costs.restore(cells)
