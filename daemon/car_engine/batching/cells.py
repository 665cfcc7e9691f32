"""Moves of cells: between sequences, to host memory and back."""

from functools import partial
from typing import Protocol

from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.saved_cells import SavedCells, SavedPrefix
from car_engine.batching.sequences import Sequence


class CellContext(Protocol):
    """A context whose sequences can be cut, copied out and back in."""

    def cut(self, number: int, start: int) -> None:
        """Remove a sequence's cells from position `start` on."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Copy the cells of a sequence to an empty one; the next decode copies the whole capacity of a sequence."""
        ...

    def attends_from(self, cells: int) -> int:
        """Return the lowest position to which the token after this many cells attends."""
        ...

    def first_position(self, number: int) -> int:
        """Return the lowest position in a sequence, -1 if it is empty."""
        ...

    def saved_from(self, number: int) -> int:
        """Return the lowest position that saving a sequence would keep."""
        ...

    def saved_size(self, number: int) -> int:
        """Return the bytes that saving a sequence takes."""
        ...

    def save(self, number: int) -> memoryview:
        """Return a sequence's cells."""
        ...

    def restore(self, number: int, saved: memoryview) -> bool:
        """Put cells into any empty sequence; False if llama.cpp refuses."""
        ...


class Reach:
    """Whether sequences keep all cells to which their next token attends: models with sliding windows drop old ones."""

    def __init__(self, context: CellContext) -> None:
        self._context = context

    def continues(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether a sequence, once cut to this many tokens, has all cells to which the next one attends."""
        return self._context.first_position(sequence.number) <= self._needed_from(sequence, tokens)

    def continues_saved(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether this is true of the cells that saving the sequence now would keep."""
        return self._context.saved_from(sequence.number) <= self._needed_from(sequence, tokens)

    def _needed_from(self, sequence: Sequence, tokens: int) -> int:
        assert sequence.prefix is not None
        return sequence.prefix.needed_from(tokens, self._context.attends_from)


class CellMover:
    """Empty sequences, and give them the cells of others; counts reuse and evictions, and learns what moves cost."""

    def __init__(self, context: CellContext, saved: SavedCells, reach: Reach, costs: MoveCosts) -> None:
        self._context = context
        self._saved = saved
        self._reach = reach
        self._costs = costs
        self.counters = {"cache_hits": 0.0, "cached_tokens": 0.0, "evicted_sequences": 0.0}  # Since the start.

    def cut(self, sequence: Sequence, tokens: int) -> None:
        """Remove the cells after this many tokens."""
        self._context.cut(sequence.number, tokens)

    def empty(self, sequence: Sequence) -> None:
        """Remove all cells, and forget the request."""
        self._context.cut(sequence.number, 0)
        sequence.clear()

    def evict(self, sequence: Sequence, *, worth_saving: bool) -> None:
        """Empty an idle sequence; a prefix that is worth saving moves to host memory where it fits."""
        if sequence.cells:
            self.counters["evicted_sequences"] += 1
        if worth_saving:
            self.save_if_fits(sequence)
        elif sequence.prefix is not None:
            self._costs.declined()
        self.empty(sequence)

    def copied(self, sequence: Sequence) -> SavedPrefix:
        """Return a copy of the cells of a sequence, which is not kept."""
        assert sequence.prefix is not None
        lowest = self._context.saved_from(sequence.number)
        cells = self._costs.saving(sequence.cells, partial(self._context.save, sequence.number))
        return SavedPrefix(sequence.prefix.cut(sequence.cells), cells, lowest)

    def save(self, sequence: Sequence) -> SavedPrefix:
        """Copy the cells of a sequence to host memory."""
        saved = self.copied(sequence)
        self._saved.keep(saved)
        return saved

    def save_if_fits(self, sequence: Sequence) -> None:
        """Copy the cells of a sequence to host memory, if they can be continued there and fit."""
        if self.can_save(sequence):
            self.save(sequence)

    def can_save(self, sequence: Sequence) -> bool:
        """Return whether the cells of a sequence can be continued from host memory, and fit there."""
        return self._reach.continues_saved(sequence, sequence.cells) and self.fits(sequence)

    def fits(self, sequence: Sequence) -> bool:
        """Return whether host memory has room for the cells of a sequence."""
        return self._saved.fits(self._context.saved_size(sequence.number))

    def restore(self, saved: SavedPrefix, sequence: Sequence, tokens: int) -> bool:
        """Continue a started sequence with saved cells; without any, and False, if llama.cpp refuses."""
        if not self._costs.restoring(len(saved.prefix), partial(self._context.restore, sequence.number, saved.cells)):
            # A state that is read in part leaves cells behind.
            self._context.cut(sequence.number, 0)
            sequence.reuse(0)
            return False
        self._saved.touch(saved)
        self._reuse(sequence, tokens)
        return True

    def copy(self, source: Sequence, sequence: Sequence, tokens: int) -> None:
        """Continue a started sequence with cells of another one."""
        self._context.copy(source.number, sequence.number)
        self._reuse(sequence, tokens)

    def count(self, tokens: int) -> None:
        """Count the cells that a request does not have to compute."""
        self.counters["cache_hits"] += 1
        self.counters["cached_tokens"] += tokens

    def _reuse(self, sequence: Sequence, tokens: int) -> None:
        self._context.cut(sequence.number, tokens)
        sequence.reuse(tokens)
        self.count(tokens)
