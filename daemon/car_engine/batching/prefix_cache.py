"""Prefix reuse: start each request where the least of its prompt has to be computed."""

from car_base.ipc.types import NO_ADAPTERS, AdapterSet
from car_engine.batching.cells import CellContext, CellMover, Reach
from car_engine.batching.prefix import Prefix, prefix_of
from car_engine.batching.reuse.copies import Copies
from car_engine.batching.reuse.expected import Expected, cells_of
from car_engine.batching.reuse.followers import Followers
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.starts import Starts
from car_engine.batching.reuse.stored_cells import CellStore, StoredCells
from car_engine.batching.reuse.stored_prefix import StoredPrefix
from car_engine.batching.reuse.storing import Storing
from car_engine.batching.reuse.worth import Worth
from car_engine.batching.saved_cells import SavedCells, SavedPrefix
from car_engine.batching.sequences import Grid, Sequence, SequenceTable


class PrefixCache:
    """Start and retire requests; `reuses` is False where the model's memory cannot drop a tail.

    Without a store cells end with the engine.
    """

    def __init__(
        self,
        context: CellContext,
        table: SequenceTable,
        saved: SavedCells,
        costs: MoveCosts,
        expected: Expected,
        store: CellStore | None = None,
        *,
        reuses: bool,
    ) -> None:
        self._table = table
        self._saved = saved
        self._reuses = reuses
        self._reach = Reach(context)
        self.expected = expected
        self._cells = CellMover(context, saved, self._reach, costs)
        self._followers = Followers(saved, costs, self._reach, self._cells)
        self.stored = StoredCells(store, self._cells, costs, context.attends_from)
        self.storing = Storing(context, table, saved, self._cells, costs, self.stored, store)
        self._copies = Copies(saved, self.stored, costs)
        self._worth = Worth(table, self._copies, costs, expected, self._cells)
        self._starts = Starts(table, self._copies, costs, self._reach, self._worth)
        self.resident: list[int] = []  # waiting requests that would go on in idle sequences, when a request ended last

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count:.0f}" for name, count in self.counters.items())
        return f"<PrefixCache followers={len(self._followers)} {counts}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, and the bytes of host memory that cells take now."""
        return {**self._cells.counters, **self.stored.counters, "saved_bytes": self._saved.bytes}

    def start(
        self,
        prompt: list[int],
        namespace: str | None,
        adapters: AdapterSet = NO_ADAPTERS,
        grid: Grid | None = None,
    ) -> Sequence | None:
        """Start a prompt in an idle sequence; None if there is none. Without a namespace no cells are reused."""
        idle = self._table.idle
        if not idle:
            return None
        order = self._table.next_order()
        if namespace is None or not self._reuses:
            spared = self._worth.awaited(idle)
            sequence = self._starts.least_lost(idle, spared).sequence
            self._empty(sequence, spared)
            sequence.start(prompt, order)
        else:
            prefix = prefix_of(prompt, cells_of(namespace, adapters), 1 if grid is None else grid.size)
            sequence = self._start_cached(prompt, prefix, idle, order)
        sequence.adapters = adapters
        sequence.grid = grid
        return sequence

    def at_hand(self, prompt: list[int], namespace: str | None, adapters: AdapterSet) -> int:
        """Return how many cells of a prompt exist now that it may reuse."""
        if namespace is None or not self._reuses:
            return 0
        most = prefix_of(prompt, cells_of(namespace, adapters)).cut(len(prompt) - 1)
        usable = self._starts.usable([each for each in self._table.sequences if each.cells], most)
        computed = [min(tokens, sequence.cells) for tokens, sequence in usable]
        return max([0, *computed, *(copy.tokens for copy in self._copies.of(most))])

    @property
    def context_tokens(self) -> int:
        """Cells of a sequence."""
        return self._table.context_tokens

    def supply_followers(self) -> None:
        """Continue followers whose leader has computed the common tokens, or will not."""
        self._followers.supply(self._table.sequences)

    def retire(self, sequence: Sequence, sampled: list[int]) -> None:
        """End a request; its cells stay as far as others may reuse them. `sampled` are the answer's tokens."""
        prefix = sequence.prefix
        self._leave(sequence)
        if prefix is None or not self._reuses or sequence.cells == 0:
            self._cells.empty(sequence)
            return
        tokens = prefix.after(sampled)
        kept = tokens.whole(min(sequence.cells, len(tokens)))
        if sequence.cells > kept:
            # Right guesses after the token that ended the request, or what no other reproducible request computes.
            self._cells.cut(sequence, kept)
            sequence.cells = kept
        sequence.retire(tokens.cut(kept))
        self.resident = self._worth.resident(self._table.idle)

    def discard(self, sequence: Sequence) -> None:
        """Empty a sequence whose request was parked or failed."""
        self._leave(sequence)
        self._cells.empty(sequence)

    def _start_cached(self, prompt: list[int], prefix: Prefix, idle: list[Sequence], order: int) -> Sequence:
        # The last token of a prompt is always computed: its logits are not kept.
        most = prefix.cut(len(prompt) - 1)
        spared = self._worth.awaited(idle)
        start = min(self._starts.of(most, idle, spared), key=lambda way: way.seconds)
        sequence = start.sequence
        if start.tokens and start.source is None:
            if self._worth.saves(sequence, start.tokens, spared.get(sequence.number, 0.0)):
                self._cells.save_if_fits(sequence)
            self._cells.cut(sequence, start.tokens)
            sequence.start(prompt, order, prefix, start.tokens)
            self._cells.count(start.tokens)
            return sequence
        self._empty(sequence, spared)
        sequence.start(prompt, order, prefix)
        if isinstance(start.source, SavedPrefix):
            self._cells.restore(start.source, sequence, start.tokens)
        elif start.source is not None:
            sequence.awaited = start.tokens
            if isinstance(start.source, StoredPrefix):
                self.stored.follow(sequence, start.source)
            else:
                self._followers.follow(sequence, start.source)
        return sequence

    def _leave(self, sequence: Sequence) -> None:
        self._followers.leave(sequence)
        self.stored.leave(sequence)

    def _empty(self, sequence: Sequence, spared: dict[int, float]) -> None:
        worth_saving = self._worth.saves(sequence, spared=spared.get(sequence.number, 0.0))
        self._cells.evict(sequence, worth_saving=worth_saving)
