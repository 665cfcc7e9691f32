"""Moves of cells and states: between sequences, to host memory and back."""

from collections.abc import Mapping
from functools import partial

from car_engine.batching.context import Context
from car_engine.batching.prefix import Checkpoint, Prefix, SavedPrefix
from car_engine.batching.reuse.index import Cells, Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_prefix import StoredPrefix
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Sequence


class CellMover:
    """Empty sequences, and give them the cells of others; counts reuse and evictions, and learns what moves cost."""

    def __init__(self, context: Context, saved: SavedCells, index: Index, costs: MoveCosts) -> None:
        self._context = context
        self._saved = saved
        self._index = index
        self._costs = costs
        self.target: Checkpoint | None = None  # of the request that starts now: what it moves may drop it from memory
        self.counters = {"cache_hits": 0.0, "cached_tokens": 0.0, "evicted_sequences": 0.0}  # Since the start.

    def take_back(self, sequence: Sequence, tokens: int) -> None:
        """Remove the rows of the last decode that come after so many tokens."""
        self._context.cut(sequence.number, tokens)
        sequence.cells = tokens

    def go_back(self, sequence: Sequence, prefix: Prefix, tokens: int) -> int:
        """Cut a sequence after its first tokens, or at the last mark before; return how many cells stay."""
        checkpoint = None
        if not self._index.memory.cuts_anywhere and tokens < sequence.cells:
            checkpoint = self.target or self._index.checkpoint(prefix.cut(tokens))
            tokens = 0 if checkpoint is None else len(checkpoint.prefix)
        if checkpoint is None:
            self._context.cut(sequence.number, tokens)
        else:
            self._saved.touch(checkpoint)
            if not self._context.restore_state(sequence.number, checkpoint.state, tokens):
                self._context.cut(sequence.number, tokens := 0)
        sequence.cells = tokens
        return tokens

    def mark(self, sequence: Sequence) -> None:
        """Keep the state of a sequence, from which a prompt can go on later; a decision holds that of its prefix."""
        assert sequence.prefix is not None
        prefix = sequence.prefix.cut(sequence.cells)
        held = sequence.labels > 0 and sequence.cells == len(sequence.prefix)
        known = self._marked(prefix)
        if known is None and self._saved.fits(self._context.state_size(sequence.number), held=held):
            state = self._costs.marking(partial(self._context.save_state, sequence.number))
            known = Checkpoint(prefix.copied(), state)
            if not held:
                self._saved.keep(known)
        if held and known is not None:
            self._hold(sequence, known)

    def hold(self, sequence: Sequence) -> None:
        """Hold the state after the prefix of a decision, which has it behind it, if there is one."""
        assert sequence.prefix is not None
        if (known := self._marked(sequence.prefix)) is not None:
            self._hold(sequence, known)

    def _hold(self, sequence: Sequence, checkpoint: Checkpoint) -> None:
        if sequence.held is None:
            self._saved.hold(checkpoint)
            sequence.held = checkpoint

    def release(self, sequence: Sequence) -> None:
        """Hold nothing for a sequence any more."""
        held, sequence.held = sequence.held, None
        if held is not None:
            self._saved.release(held)

    def keep_states(self, states: Mapping[Prefix, memoryview]) -> None:
        """Keep states that were read, unless there are some after the same tokens."""
        for prefix, state in states.items():
            if self._marked(prefix) is None:
                self._saved.keep(Checkpoint(prefix.copied(), state))

    def used(self, prefix: Prefix, source: Cells) -> None:
        """Count the state from which a prompt goes on after these tokens as used now, and the cells if saved."""
        if (checkpoint := self._index.checkpoint(prefix)) is not None:
            self._saved.touch(checkpoint)
        if isinstance(source, SavedPrefix):
            self._saved.touch(source)

    def _marked(self, prefix: Prefix) -> Checkpoint | None:
        """Return the state after these tokens, which counts as used now; None if it is not kept."""
        known = self._index.checkpoint(prefix)
        if known is None or len(known.prefix) < len(prefix):
            return None
        self._saved.touch(known)
        return known

    def empty(self, sequence: Sequence) -> None:
        """Remove all cells, and forget the request."""
        self._context.cut(sequence.number, 0)
        self._index.drop(sequence)
        sequence.clear()

    def evict(self, sequence: Sequence, *, worth_saving: bool) -> None:
        """Empty an idle sequence; a prefix that is worth saving moves to host memory if it fits."""
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
        cells = self._costs.saving(sequence.cells, partial(self._context.save, sequence.number))
        return SavedPrefix(sequence.prefix.cut(sequence.cells), cells, sequence.cells)

    def save(self, sequence: Sequence) -> SavedPrefix:
        """Copy the cells of a sequence to host memory."""
        saved = self.copied(sequence)
        self._saved.keep(saved)
        return saved

    def save_if_fits(self, sequence: Sequence) -> None:
        """Copy the cells of a sequence to host memory, if they fit."""
        if self.fits(sequence):
            self.save(sequence)

    def fits(self, sequence: Sequence) -> bool:
        """Return whether host memory has room for the cells of a sequence."""
        return self._saved.fits(self._context.saved_size(sequence.number))

    def restore(self, saved: SavedPrefix, sequence: Sequence, tokens: int) -> bool:
        """Continue a started sequence with saved cells; without any, and False, if llama.cpp refuses."""
        if not self._costs.restoring(saved.count, partial(self._context.restore, sequence.number, saved.cells)):
            # A state that is read in part leaves cells behind.
            self._context.cut(sequence.number, 0)
            sequence.reuse(0)
            return False
        self._saved.touch(saved)
        self.go_on(sequence, saved.count, tokens)
        return True

    def supply(self, sequence: Sequence, sharers: int = 1) -> None:
        """Continue a sequence with the most cells of what it awaits that sequences or host memory have now.

        If a copy takes longer than to compute the cells, it has none. `sharers` sequences wait for the same cells.
        """
        assert sequence.prefix is not None
        present = self._index.present(sequence.prefix.cut(sequence.awaited))
        marks = [(each.tokens, each.source) for each in present if each.tokens]
        there = [(tokens, source) for tokens, source in marks if not isinstance(source, StoredPrefix)]
        tokens, source = max(there, key=lambda each: (each[0], isinstance(each[1], SavedPrefix)), default=(0, sequence))
        if isinstance(source, SavedPrefix):
            self.restore(source, sequence, tokens)
        elif tokens and min(self.costs_of(source, source.cells, sharers)) < self._costs.compute(0, tokens):
            self.bring(source, sequence, tokens, sharers)
        else:
            sequence.reuse(0)

    def costs_of(self, source: Sequence, cells: int, sharers: int = 1) -> tuple[float, float]:
        """Return the seconds to copy a sequence of so many cells: within the context, and through host memory.

        Host memory keeps what goes through it, so `sharers` share the cost to save it.
        """
        costs = self._costs
        return costs.copy(), costs.save(cells) / (sharers if self.fits(source) else 1) + costs.restore(cells)

    def bring(self, source: Sequence, sequence: Sequence, tokens: int, sharers: int = 1) -> None:
        """Continue a started sequence with tokens of another one, in the way that costs less."""
        within, through_host = self.costs_of(source, source.cells, sharers)
        if within <= through_host:
            self._context.copy(source.number, sequence.number)
            self.go_on(sequence, source.cells, tokens)
        else:
            self.restore(self.save(source), sequence, tokens)

    def go_on(self, sequence: Sequence, cells: int, tokens: int) -> None:
        """Continue a started sequence, which has so many cells now, after its first tokens or at the last mark."""
        assert sequence.prefix is not None
        sequence.cells = cells
        sequence.reuse(self.go_back(sequence, sequence.prefix, tokens))
        self.count(sequence)

    def count(self, sequence: Sequence) -> None:
        """Count the cells that a request does not have to compute."""
        self.counters["cache_hits"] += sequence.cached > 0
        self.counters["cached_tokens"] += sequence.cached
