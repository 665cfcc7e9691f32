"""Prefix reuse: start each request so that the least of its prompt has to be computed."""

from collections import abc

from car_base.ipc.types import NO_ADAPTERS, AdapterSet
from car_engine.batching.cells import CellMover
from car_engine.batching.context import Context
from car_engine.batching.prefix import Prefix, SavedPrefix, prefix_of
from car_engine.batching.reuse.expected import Expected, cells_of
from car_engine.batching.reuse.followers import Followers
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.neighbours import Neighbours
from car_engine.batching.reuse.read_prompts import KnownPrompt, ReadPrompts
from car_engine.batching.reuse.stops import stops
from car_engine.batching.reuse.stored_cells import CellStore, StoredCells
from car_engine.batching.reuse.stored_prefix import StoredPrefix
from car_engine.batching.reuse.storing import Storing
from car_engine.batching.reuse.ways import Ways
from car_engine.batching.reuse.worth import Worth
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Grid, Phase, Sequence, SequenceTable


class PrefixCache:
    """Start and retire requests; without a store cells end with the engine."""

    def __init__(
        self,
        context: Context,
        table: SequenceTable,
        saved: SavedCells,
        index: Index,
        costs: MoveCosts,
        expected: Expected,
        store: CellStore | None = None,
    ) -> None:
        self._table = table
        self._saved = saved
        self._index = index
        self._costs = costs
        self.expected = expected
        self._cells = CellMover(context, saved, index, costs)
        self._followers = Followers(index, self._cells)
        self.stored = StoredCells(store, index, self._cells, costs)
        self.storing = Storing(context, table, saved, self._cells, costs, index, store)
        self._worth = Worth(table, index, costs, expected, self._cells)
        self._neighbours = Neighbours(table, costs.steps, pads=index.memory.takes_back)
        self._ways = Ways(costs, self._worth, self._neighbours, self._cells)
        self._read = ReadPrompts()
        self.resident: list[int] = []  # waiting requests that would go on in idle sequences, when a request ended last

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count:.0f}" for name, count in self.counters.items())
        return f"<PrefixCache {counts}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, and the bytes of host memory that cells take now."""
        return {**self._cells.counters, **self.stored.counters, "saved_bytes": self._saved.bytes}

    @property
    def context_tokens(self) -> int:
        """Cells of a sequence."""
        return self._table.context_tokens

    def start(
        self,
        prompt: list[int],
        namespace: str | None,
        adapters: AdapterSet = NO_ADAPTERS,
        grid: Grid | None = None,
        own: tuple[int, ...] = (1,),
        parts: bytes | None = None,
    ) -> Sequence | None:
        """Start a prompt in an idle sequence; None if there is none. Without a namespace no cells are reused.

        With `parts`, digests of its tools and messages, it is remembered, to tell at which part later prompts differ.

        Others may go on before so many of its last tokens as `own` says: later prompts of the chat, then other chats.
        A restored window has other places in memory than a computed window. That changes results, so a reproducible
        request reuses no cells of a model with windows.
        """
        prefix = None
        if namespace is not None and not (grid is not None and self._index.memory.windows):
            prefix = prefix_of(prompt, cells_of(namespace, adapters), 1 if grid is None else grid.size)
        return self.start_in(prefix, prompt, adapters, grid, own, parts)

    def start_in(
        self,
        prefix: Prefix | None,
        prompt: abc.Sequence[int],
        adapters: AdapterSet,
        grid: Grid | None,
        own: tuple[int, ...],
        parts: bytes | None = None,
        had: int = 0,
    ) -> Sequence | None:
        """Start a prompt as `start` does, in any cells that begin with this prefix of it; without a prefix in none.

        A parked request `had` so many cells.
        """
        idle = self._table.idle
        if not idle:
            return None
        order, spared = self._table.next_order(), self._worth.awaited(idle)
        if prefix is None:
            sequence = self._ways.victim(idle, spared)
            self._empty(sequence, spared)
            sequence.start(prompt, order)
        else:
            sequence = self._start_cached(prompt, prefix, idle, spared, order, own, parts, had)
        sequence.adapters = adapters
        sequence.grid = grid
        return sequence

    def spare_memory(self, spare: bool) -> None:
        """Keep nothing in host memory but the cells of parked requests, as long as memory is short."""
        self._saved.spare(spare)

    def at_hand(self, prompt: list[int], namespace: str | None, adapters: AdapterSet) -> int:
        """Return how many cells of a prompt exist now that it may reuse."""
        if namespace is None:
            return 0
        return self._at_hand(prefix_of(prompt, cells_of(namespace, adapters)).cut(len(prompt) - 1))

    def exceeds(self, prefix: Prefix | None, cells: int) -> bool:
        """Return whether more cells than these exist that begin with a prefix."""
        return prefix is not None and self._at_hand(prefix) > cells

    def settle(self) -> None:
        """Keep the states of sequences that stopped for that, and continue followers whose leader has their tokens."""
        for sequence in self._table.sequences:
            while sequence.stops and sequence.stops[0] <= sequence.cells:
                if sequence.stops.pop(0) == sequence.cells:
                    self._cells.mark(sequence)
        self._followers.supply(self._table.sequences)

    def go_back(self, sequence: Sequence, tokens: int) -> int:
        """Cut a sequence after its first tokens, or at the last mark before; return how many cells stay.

        `mark` makes one where the sequence is now. Without a prefix none stay.
        """
        if sequence.prefix is None:
            self._cells.take_back(sequence, 0)
            return 0
        return self._cells.go_back(sequence, sequence.prefix, tokens)

    def hold(self, sequence: Sequence, tokens: int) -> None:
        """Offer other requests the first tokens of a sequence alone, and mark it there, because it will go back."""
        if sequence.prefix is None:
            return
        sequence.prefix = sequence.prefix.cut(tokens)
        self._index.put(sequence)
        sequence.stops = [stop for stop in sequence.stops if stop <= tokens]
        if sequence.cells < tokens and not self._index.memory.cuts_anywhere:
            sequence.stop_at(tokens)
        else:
            self._cells.hold(sequence)

    def mark(self, sequence: Sequence) -> None:
        """Let a sequence go back to where it is now, whatever its memory."""
        if not self._index.memory.cuts_anywhere:
            self._cells.mark(sequence)

    def retire(self, sequence: Sequence, sampled: list[int]) -> None:
        """End a request; its cells stay as far as others may reuse them. `sampled` are the answer's tokens."""
        prefix = sequence.prefix
        self._neighbours.answered(len(sampled))
        self._leave(sequence)
        if prefix is None or sequence.cells == 0:
            if sequence.read is not None:
                sequence.read.prefix = sequence.read.prefix.cut(0)
            self._cells.empty(sequence)
            return
        tokens = prefix.after(sampled)
        kept = tokens.whole(min(sequence.cells, len(tokens)))
        if sequence.read is not None:
            sequence.read.prefix = tokens.cut(kept)
        if sequence.cells > kept and self._index.memory.takes_back:
            # Right guesses after the token that ended the request, or what no other reproducible request computes.
            self._cells.take_back(sequence, kept)
        elif sequence.cells > kept:
            kept = self._cells.go_back(sequence, tokens, kept)
        if sequence.read is not None:
            sequence.read.left = kept
        sequence.retire(tokens.cut(kept))
        self._index.put(sequence)
        self.resident = self._worth.resident(self._table.idle)

    def resumed(
        self,
        sequence: Sequence,
        prefix: Prefix | None,
        stops: list[int],
        read: KnownPrompt | None,
    ) -> None:
        """Let others reuse the cells of a parked request that has a sequence again, with the marks that it lacks."""
        sequence.prefix, sequence.stops, sequence.read = prefix, stops, read
        if read is not None and prefix is not None:
            read.prefix = prefix
        self._index.put(sequence)

    def vacate(self, sequence: Sequence) -> None:
        """Empty a sequence whose request was parked; its followers go on in its cells before."""
        self._followers.supply(self._table.sequences, leaving=sequence)
        self.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Empty a sequence whose request was parked or failed."""
        if sequence.read is not None:
            sequence.read.prefix = sequence.read.prefix.cut(sequence.cells)
        self._leave(sequence)
        self._cells.empty(sequence)

    def _at_hand(self, prefix: Prefix) -> int:
        return max((mark.tokens for mark in self._index.present(prefix)), default=0)

    def _start_cached(
        self,
        prompt: abc.Sequence[int],
        prefix: Prefix,
        idle: list[Sequence],
        spared: dict[int, float],
        order: int,
        own: tuple[int, ...],
        parts: bytes | None,
        had: int,
    ) -> Sequence:
        # The last token of a prompt is always computed: its logits are not kept.
        marks = self._index.marks(prefix.cut(len(prompt) - 1))
        way = self._ways.best(prefix.cut(len(prompt) - 1), marks, idle, spared)
        sequence, source = way.sequence, way.source
        self._cells.target = self._index.checkpoint(prefix.cut(way.tokens))
        if source is sequence:
            self._go_on(sequence, prefix, way.tokens, spared)
            sequence.start(prompt, order, prefix, sequence.cells, had)
            self._cells.count(sequence)
        else:
            self._empty(sequence, spared)
            sequence.start(prompt, order, prefix, had=had)
        self._index.put(sequence)
        if parts is not None:
            at_hand = max((mark.common for mark in marks), default=0)
            sequence.read = self._read.add(prefix, parts, own[0], at_hand=at_hand, used=way.tokens)
        if isinstance(source, SavedPrefix):
            self._cells.restore(source, sequence, way.tokens)
        elif isinstance(source, StoredPrefix):
            self.stored.follow(sequence, source, way.tokens)
        elif source is not None and source is not sequence:
            if source.phase is Phase.IDLE:
                self._cells.bring(source, sequence, way.tokens)
            else:
                self._followers.follow(sequence, source, way.tokens)
        self._cells.target = None
        if not self._index.memory.cuts_anywhere:
            partings = {mark.common for mark in marks}
            partings |= {prefix.common(waiting) for _, waiting in self.expected.prompts}
            begun = max(way.tokens, sequence.cells)
            sequence.stops = stops(prefix, begun, partings, own, self._costs)
            if sequence.awaited:
                # What it waits for may not come, and it reads all.
                alone = stops(prefix, sequence.cells, partings, own, self._costs)
                sequence.stops = [stop for stop in alone if stop <= begun] + sequence.stops
        return sequence

    def _go_on(self, sequence: Sequence, prefix: Prefix, tokens: int, spared: dict[int, float]) -> None:
        """Go on in an idle sequence, which leaves the rest of its cells."""
        common = sequence.prefix.common(prefix) if sequence.prefix is not None else 0
        if self._worth.saves(sequence, common, spared.get(sequence.number, 0.0)):
            self._cells.save_if_fits(sequence)
        if tokens == sequence.cells:
            self.mark(sequence)
        self._cells.go_back(sequence, prefix, tokens)

    def _leave(self, sequence: Sequence) -> None:
        self.stored.leave(sequence)
        self._cells.release(sequence)

    def _empty(self, sequence: Sequence, spared: dict[int, float]) -> None:
        worth_saving = self._worth.saves(sequence, spared=spared.get(sequence.number, 0.0))
        self._cells.evict(sequence, worth_saving=worth_saving)
