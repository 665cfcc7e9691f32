"""Prefix reuse: start each request where the least of its prompt has to be computed."""

from typing import NamedTuple

from car_daemon.engine.batching.cells import CellContext, CellMover, Reach
from car_daemon.engine.batching.grid import Grid
from car_daemon.engine.batching.prefix import Prefix, prefix_of
from car_daemon.engine.batching.reuse.expected import Expected, cells_of
from car_daemon.engine.batching.reuse.move_costs import MoveCosts
from car_daemon.engine.batching.reuse.worth import Worth
from car_daemon.engine.batching.saved_cells import SavedCells, SavedPrefix
from car_daemon.engine.batching.sequence import Phase, Sequence
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.ipc.types import NO_ADAPTERS, AdapterSet

# Phases in which a leader will still compute more of its prompt.
_COMING = (Phase.FOLLOW, Phase.ENCODE, Phase.PREFILL)


class _Start(NamedTuple):
    """A way to start a prompt: the idle sequence to take, the source of its cells, and how many are reused."""

    seconds: float  # until the prompt is computed, and those that later requests lose
    sequence: Sequence
    tokens: int = 0
    source: SavedPrefix | Sequence | None = None  # host memory, a running request, or the sequence's own cells


class PrefixCache:
    """Start and retire requests; `reuses` is False where the model's memory cannot drop a tail."""

    def __init__(
        self,
        context: CellContext,
        table: SequenceTable,
        saved: SavedCells,
        costs: MoveCosts,
        expected: Expected,
        *,
        reuses: bool,
    ) -> None:
        self._table = table
        self._saved = saved
        self._reuses = reuses
        self._reach = Reach(context)
        self.expected = expected
        self._costs = costs
        self._worth = Worth(table, saved, costs, expected)
        self._cells = CellMover(context, saved, self._reach, costs)
        self._leaders: dict[int, tuple[Sequence, int]] = {}  # By follower's number: the leader and its request's order.

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count:.0f}" for name, count in self.counters.items())
        return f"<PrefixCache followers={len(self._leaders)} {counts}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, and the bytes of host memory that cells take now."""
        return {**self._cells.counters, "saved_bytes": self._saved.bytes}

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
            sequence = self._least_lost(idle, spared).sequence
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
        usable = self._usable([each for each in self._table.sequences if each.cells], most)
        computed = [min(tokens, sequence.cells) for tokens, sequence in usable]
        return max(*computed, self._saved.longest(most)[0], 0)

    @property
    def context_tokens(self) -> int:
        """Cells of a sequence."""
        return self._table.context_tokens

    def supply_followers(self) -> None:
        """Continue followers whose leader has computed the common tokens, or will not."""
        for number, (leader, order) in list(self._leaders.items()):
            sequence = self._table.sequences[number]
            computed = leader.cells if leader.order == order else 0
            if computed < sequence.awaited and leader.order == order and leader.phase in _COMING:
                continue
            followers = sum(each is leader for each, _ in self._leaders.values())
            del self._leaders[number]
            assert sequence.prefix is not None
            self._supply(sequence, leader, sequence.prefix.whole(min(computed, sequence.awaited)), followers)

    def retire(self, sequence: Sequence, sampled: list[int]) -> None:
        """End a request; its cells stay as far as others may reuse them. `sampled` are the answer's tokens."""
        prefix = sequence.prefix
        self._leaders.pop(sequence.number, None)
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

    def discard(self, sequence: Sequence) -> None:
        """Empty a sequence whose request was parked or failed."""
        self._leaders.pop(sequence.number, None)
        self._cells.empty(sequence)

    def _supply(self, sequence: Sequence, leader: Sequence, tokens: int, followers: int) -> None:
        """Continue a follower with tokens of its leader in the way that costs least; it computes them if that is it."""
        assert sequence.prefix is not None
        saved_tokens, saved = self._saved.longest(sequence.prefix.cut(tokens))
        if saved is not None and saved_tokens == tokens:
            self._cells.restore(saved, sequence, tokens)
            return
        costs, ways = self._costs, {"compute": self._costs.compute(0, tokens)}
        if tokens and self._reach.continues(leader, tokens):
            ways["copy"] = costs.copy()
            if self._reach.continues_saved(leader, tokens):
                sharers = followers if self._cells.fits(leader) else 1
                ways["save"] = costs.save(leader.cells) / sharers + costs.restore(leader.cells)
        match min(ways, key=lambda way: ways[way]):
            case "copy":
                self._cells.copy(leader, sequence, tokens)
            case "save":
                self._cells.restore(self._cells.save(leader), sequence, tokens)
            case _:
                sequence.reuse(0)

    def _start_cached(self, prompt: list[int], prefix: Prefix, idle: list[Sequence], order: int) -> Sequence:
        # The last token of a prompt is always computed: its logits are not kept.
        most = prefix.cut(len(prompt) - 1)
        spared = self._worth.awaited(idle)
        start = min(self._ways(most, idle, spared), key=lambda way: way.seconds)
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
            self._leaders[sequence.number] = start.source, start.source.order
        return sequence

    def _ways(self, most: Prefix, idle: list[Sequence], spared: dict[int, float]) -> list[_Start]:
        """Return the ways to start a prompt; of ways that cost the same the first is best."""
        costs, end = self._costs, len(most) + 1
        ways = [
            _Start(
                costs.compute(tokens, end) + self._worth.lost(each, tokens, spared.get(each.number, 0.0)), each, tokens
            )
            for tokens, each in self._usable(idle, most)
        ]
        seconds, sequence, *_ = self._least_lost(idle, spared)
        saved_tokens, saved = self._saved.longest(most)
        if saved is not None:
            moved = costs.restore(len(saved.prefix)) + costs.compute(saved_tokens, end)
            ways.append(_Start(seconds + moved, sequence, saved_tokens, saved))
        busy = self._usable([each for each in self._table.sequences if each not in idle], most)
        # Of equal ones the one that has computed most.
        tokens, leader = max(busy, key=lambda found: (found[0], min(found[0], found[1].cells)), default=(0, None))
        if leader is not None:
            moved = min(costs.copy(), costs.save(tokens) + costs.restore(tokens)) + costs.compute(tokens, end)
            ways.append(_Start(seconds + moved, sequence, tokens, leader))
        ways.append(_Start(seconds + costs.compute(0, end), sequence))
        return ways

    def _least_lost(self, idle: list[Sequence], spared: dict[int, float]) -> _Start:
        """Return the idle sequence whose cells are worth least; of equal ones the lowest number, for packing."""
        losses = [_Start(self._worth.lost(each, spared=spared.get(each.number, 0.0)), each) for each in idle]
        return min(losses, key=lambda loss: loss.seconds)

    def _empty(self, sequence: Sequence, spared: dict[int, float]) -> None:
        worth_saving = self._worth.saves(sequence, spared=spared.get(sequence.number, 0.0))
        self._cells.evict(sequence, worth_saving=worth_saving)

    def _usable(self, sequences: list[Sequence], prefix: Prefix) -> list[tuple[int, Sequence]]:
        """Return the sequences with tokens that can be reused, and how many."""
        common = [(each.prefix.common(prefix), each) for each in sequences if each.prefix is not None]
        return [(tokens, each) for tokens, each in common if tokens and self._reach.continues(each, tokens)]
